"""Methods of the user's own: given as classes and by import path, hashed, sent to workers."""

import importlib
import linecache
import pickle
import sys

import cloudpickle
import pandas as pd
import pytest
import torch

import flbench as fl
from flbench.algorithms import ALGORITHMS, Algorithm, Communication, Deployment, Paper
from flbench.algorithms.fedavg import FedAvg
from flbench.config.resolve import resolve_written
from flbench.core import source_hash
from flbench.core.errors import ConfigError
from flbench.core.tree import digest_of_models
from flbench.core.types import Dispatch, Message
from flbench.deploy import loading
from flbench.experiment import lifecycle
from flbench.experiment.assembly import load_federation
from flbench.experiment.smoke import Smoke
from flbench.workers.shipping import pack

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)
KEYS = {"partition": FEW, "train": {"rounds": 1}, "progress": False}
MODULE = '''
from flbench.algorithms import Communication, Paper
from flbench.algorithms.fedavg import FedAvg
from ownkit import constants


class Kit(FedAvg):
    """A method with a constant in another module."""

    paper = Paper("Kit", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")
    k = constants.K
'''
CELL = '''
class Cell(FedAvg):
    """A method of a notebook."""

    paper = Paper("Cell", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")

    def weights(self, results):
        return super().weights(results) * K
'''


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Return a function that writes and imports the package anew, with a value of its constant."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "site" / "ownkit"
    folder.mkdir(parents=True)

    def forget():
        ALGORITHMS.pop("kit", None)
        for name in [name for name in sys.modules if name.partition(".")[0] == "ownkit"]:
            del sys.modules[name]

    def written(value):
        forget()
        (folder / "__init__.py").touch()
        (folder / "constants.py").write_text(f"K = {value}\n")
        (folder / "method.py").write_text(MODULE)
        importlib.invalidate_caches()
        return importlib.import_module("ownkit.method").Kit

    yield written
    forget()


@pytest.mark.slow
def test_a_constant_of_the_package_is_in_the_hash_and_an_edit_is_refused(kit, tmp_path):
    def short(method):
        return fl.run(method, engine={"threads": 1}, output={"dir": tmp_path / "out"}, **KEYS)

    by_class = short(kit(1))
    by_path = short("ownkit.method:Kit")
    assert by_class.config.algorithm.source == "ownkit.method:Kit"
    assert by_class.config.hash() == by_path.config.hash()
    assert by_class.digest == by_path.digest
    (by_class.path / "summary.json").unlink()

    other = short(kit(2))
    assert other.config.hash() != by_class.config.hash()
    apart = {run.config.algorithm.sha256 for run in (by_path, other)}
    assert len(apart) == 2
    with pytest.raises(ConfigError, match="`kit`"):
        fl.resume(by_class.path, progress=False)

    kit(1)
    assert fl.resume(by_class.path, progress=False).digest == by_class.digest
    with pytest.MonkeyPatch.context() as patch:  # the models of a finished run need no trial
        patch.setattr(Smoke, "check", lambda *_: pytest.fail("the method was tried"))
        assert loading.load(by_class.path, 0) is not None


def test_a_method_of_a_notebook_travels_with_its_hash(monkeypatch):
    names = {
        "__name__": "__main__",
        "K": 2.0,
        "FedAvg": FedAvg,
        "Paper": Paper,
        "Communication": Communication,
    }
    monkeypatch.setitem(
        linecache.cache, "<cell m>", (len(CELL), None, CELL.splitlines(keepends=True), "<cell m>")
    )
    exec(compile(CELL, "<cell m>", "exec"), names)
    section = ALGORITHMS.section(names["Cell"])
    assert section == {"name": "cell", "source": "object"}
    sent = cloudpickle.dumps(pack({}, ["cell"]))
    sha256 = source_hash.of_object(names["Cell"])
    monkeypatch.delitem(linecache.cache, "<cell m>")  # another process has not run the cell
    del ALGORITHMS["cell"]

    parcel = pickle.loads(sent)
    with parcel.opened():
        received = ALGORITHMS.find("cell", "object")
        assert source_hash.of_object(received) == sha256
    assert received.__qualname__ == "Cell"
    del ALGORITHMS["cell"]
    with pytest.raises(ConfigError, match="cell"):
        ALGORITHMS.find("cell", "object")


class Bare(Algorithm):
    """A method without its attributes."""


class FedPer(FedAvg):
    """A class whose name in lower case is that of a method of flbench."""

    paper = Paper("Other", "nobody", "invented")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Bare, "paper"),
        (FedPer, "`fedper`"),
        (int, "int"),
        ("tests.api.test_own_methods:KEYS", "KEYS"),
        ("tests.api.test_own_methods:Nothing", "`Nothing`"),
        ("no_such_module:Method", "`no_such_module`"),
        ("no_such_file.py:Method", "no_such_file.py"),
    ],
    ids=str,
)
def test_what_is_no_method_is_refused(given, named):
    with pytest.raises(ConfigError, match=named):
        ALGORITHMS.section(given)


class Raising(FedAvg):
    """A method whose server raises an exception in each round."""

    paper = Paper("Raising", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")

    def aggregate(self, state, results):
        raise KeyError("no such leaf")


@pytest.mark.slow
def test_failed_cells_are_a_warning_and_a_method_without_any_is_an_error(tmp_path, monkeypatch):
    def compared(*methods, **keys):
        keys = KEYS | {"jobs": 1, "out": tmp_path / methods[0].__class__.__name__} | keys
        return fl.compare(methods, **keys)

    # With progress, the cost is estimated before, which raises too.
    with pytest.raises(fl.RunError, match=r"`raising`.*KeyError.*test_own_methods"):
        compared(Raising, "fedavg", seeds=1, progress=True)
    [path] = tmp_path.glob("*/*")
    cells = fl.load(path).cells.set_index("method")["state"]
    assert cells.to_dict() == {"raising": "failed", "fedavg": "finished"}

    run = lifecycle.run

    def failing(config, *given, **options):
        if config.algorithm.name == "local" and config.seed == 0:
            raise ConfigError("no such luck")
        return run(config, *given, **options)

    monkeypatch.setattr(lifecycle, "run", failing)
    with pytest.warns(UserWarning, match="no such luck"):
        found = compared("local", seeds=2)
    assert found.cells["state"].tolist() == ["failed", "finished"]
    assert any("local" in one and "no such luck" in one for one in fl.report(found.path).warnings)


class Noisy(FedAvg):
    """Deploys the global model with noise that all clients share."""

    paper = Paper("Noisy", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")
    own = False

    def deploy(self, state, ids):
        parameters = {name: state.server[name] for name in self.setting.net.parameters}
        if not self.own:
            noisy = {name: w + 0.2 * torch.randn_like(w) for name, w in parameters.items()}
            return {"personal": Deployment(Dispatch(shared=Message(noisy)))}
        noisy = {n: w + 0.2 * torch.randn(len(ids), *w.shape) for n, w in parameters.items()}
        return {"personal": Deployment(Dispatch(rows=Message(noisy)))}


class NoisyRows(Noisy):
    """Deploys the global model with noise of each client's own."""

    own = True


@pytest.mark.slow
@pytest.mark.parametrize("method", [Noisy, NoisyRows])
def test_models_that_a_method_draws_are_the_same_wherever_they_are_computed(method, tmp_path):
    keys = KEYS | {"train": {"rounds": 3, "optimizer": {"lr": 0.1}}}
    runs = []
    for engine in ("sequential", "vectorized"):
        torch.manual_seed(len(runs))  # what the process has drawn before
        output = {"dir": tmp_path / engine, "predictions": True}
        keys |= {"output": output, "engine": {"name": engine, "threads": 1}}
        runs.append(fl.run(method, **keys))
    tables = [
        [pd.read_csv(run.path / f"{n}.csv") for n in ("clients", "predictions")] for run in runs
    ]
    clients, predictions = tables[0]
    assert all(map(pd.DataFrame.equals, tables[0], tables[1]))

    last = clients[clients["moment"] == "last"].set_index("client")
    right = predictions["true"] == predictions["predicted"]
    shares = right.groupby(predictions["client"]).mean()
    assert shares.to_dict() == pytest.approx(last["accuracy"][shares.index].to_dict())
    best = runs[0].clients.query("moment == 'best'")["accuracy"].mean()
    assert best == pytest.approx(runs[0].summary["best"]["test"]["accuracy_mean"], abs=1e-6)
    x = load_federation(resolve_written(runs[0].path / "config.yaml")[0]).dataset.x
    digests = []
    for _ in range(2):
        models = [loading.load(runs[0].path, k, checkpoint="last") for k in range(3)]
        digests.append(digest_of_models(model.net.net.state_dict() for model in models))
    assert digests == [runs[0].digest] * 2
    for k, mine in predictions.groupby("client"):
        scores = models[k].predict(x[mine["sample"]])
        assert scores.argmax(dim=1).tolist() == mine["predicted"].tolist()
    first = dict(models[0].net.net.named_parameters())
    differ = [not torch.equal(w, first[n]) for n, w in models[1].net.net.named_parameters()]
    assert all(differ) if method.own else not any(differ)
