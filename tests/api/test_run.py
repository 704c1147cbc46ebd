import pickle
import random
import shutil
import signal
import warnings
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

import flbench as fl
from flbench.api import partitions, running
from flbench.calls import process
from flbench.cli.app import main
from flbench.config.resolve import resolve
from flbench.config.schema import PartitionConfig, SchemeName
from flbench.results import reading, tables
from tests.support import Interrupting

PARTITION = fl.Dirichlet(alpha=0.5, clients=4, samples=400)


def short(out, algorithm="fedavg", **keys):
    """A run of two rounds."""
    train = {"rounds": 2, "local_epochs": 1, **keys.pop("train", {})}
    keys = {"partition": PARTITION, "engine": {"threads": 1}, "progress": False, **keys}
    return fl.run(algorithm, train=train, output={"dir": out}, **keys)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return short(tmp_path_factory.mktemp("api"))


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run's folder, which the test may write to."""
    return shutil.copytree(finished.path, tmp_path / "copy")


def test_all_names_of_the_interface_exist():
    for name in fl.__all__:
        assert getattr(fl, name) is not None
        assert name in dir(fl)
    assert fl.metrics.__name__ == "flbench.metrics"  # a subpackage
    with pytest.raises(AttributeError):
        fl.nothing  # noqa: B018


@pytest.mark.slow
def test_same_digest_as_the_command_line(finished, tmp_path, capsys):
    overrides = (
        *("algorithm=fedavg", "partition.alpha=0.5", "partition.clients=4"),
        *("partition.samples=400", "train.rounds=2", "train.local_epochs=1", "engine.threads=1"),
    )
    assert main(["run", *overrides, "tracking.mlflow=false", f"output.dir={tmp_path}"]) == 0
    capsys.readouterr()
    [path] = tmp_path.glob("*/*")

    assert fl.load(path).digest == finished.digest
    assert fl.load(path).config.hash() == finished.config.hash()


@contextmanager
def default_dtype():
    """A script that computes in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    assert torch.get_default_dtype() == torch.float64  # it is that of the script again
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_what_the_process_has_set_does_not_change_a_run(finished, tmp_path, capfd):
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    states = (default_dtype(), torch.device("meta"), torch.no_grad(), torch.inference_mode())
    with ExitStack() as stack:
        for state in (*states, torch.autocast("cpu")):
            stack.enter_context(state)
        run = short(tmp_path, progress=True)
    assert run.digest == finished.digest
    shown = capfd.readouterr()
    assert "2/2" in shown.err
    assert not shown.out


def test_changes_of_the_process_are_undone():
    """Every state that `preserved` restores, changed within it."""
    threads = torch.get_num_threads()
    interrupt = signal.getsignal(signal.SIGINT)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    show, benchmark = warnings.showwarning, torch.backends.cudnn.benchmark
    with pytest.raises(KeyboardInterrupt), process.preserved():  # noqa: PT012
        torch.set_num_threads(threads + 1)
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.benchmark = not benchmark
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        warnings.showwarning = print
        raise KeyboardInterrupt

    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()) == str(states[1])
    assert random.getstate() == states[2]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.cudnn.benchmark is benchmark
    assert signal.getsignal(signal.SIGINT) is interrupt
    assert warnings.showwarning is show


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"sead": 1}, "sead"),
        ({"calbacks": ()}, "calbacks"),
        ({"lr": 0.1}, "lr"),
        ({"train": {"rouns": 3}}, "train.rouns"),
        ({"train": {"rounds": len}}, "train.rounds"),
        ({"partition": fl.Dirichlet(alpha=-1.0)}, "partition.alpha"),
    ],
)
def test_wrong_arguments_are_refused_by_key(keys, key):
    with pytest.raises(fl.ConfigError) as caught:
        fl.run(progress=False, **keys)
    assert caught.value.key == key


@pytest.mark.slow
def test_what_a_run_returns_leaves_the_run_and_the_process_as_they_are(finished):
    run = pickle.loads(pickle.dumps(finished))
    accuracy, x = run.summary["test"]["accuracy"], np.zeros((2, 8, 8), dtype=np.uint8)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    scores, net = run.predict(x, client=0), run.model(client=0)

    run.summary["test"]["accuracy"] = 2.0
    run.metrics.drop(run.metrics.index, inplace=True)
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)

    assert not net.training
    assert run.summary["test"]["accuracy"] == accuracy
    assert len(run.metrics) > 0
    assert torch.equal(run.predict(x, client=0), scores)
    assert torch.equal(run.predict(x, client="0"), scores)
    assert run.predict(x).shape == (2, 10)  # the global model
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    with pytest.raises(fl.UserError, match="99"):
        run.model(client=99)


def test_wrong_keys_of_a_scheme_are_named():
    with pytest.raises(fl.ConfigError, match="`alpha`"):
        fl.Dirichlet(alhpa=0.1)
    with pytest.raises(TypeError):
        fl.Dirichlet(0.1)


def test_sections_can_be_given_by_dicts_names_objects_and_a_file(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("train: {rounds: 7, clip: 1.0}\nalgorithm: {name: hfcd, tau: 0.5}\n")
    optimizer = {"name": "adam"}
    layers = running.arguments.layers(
        "run",
        file,
        {
            "algorithm": None,
            "data": "digits",
            "partition": "iid",
            "model": "lenet5",
            "train": {"batch_size": np.int64(16), "optimizer": optimizer},
            "train.optimizer.lr": 0.5,
            "train.clip": None,
            "seed": None,
        },
    )
    config, origins = resolve(layers)

    assert (config.algorithm.name, config.algorithm.tau) == ("hfcd", 0.5)
    assert (config.train.rounds, config.train.batch_size) == (7, 16)
    assert (config.train.optimizer.name, config.train.optimizer.lr) == ("adam", 0.5)
    assert (config.partition.scheme, config.model.name) == ("iid", "lenet5")
    assert (config.train.clip, config.seed) == (None, 0)  # a dotted key may be null
    assert config.tracking.mlflow is False
    assert origins["train.rounds"] == f"{file}:1"
    assert origins["train.optimizer.lr"] == "argument of fl.run"
    assert optimizer == {"name": "adam"}  # the user's dict is not changed


def test_every_scheme_and_key_of_a_partition_has_a_function():
    keys = {key for one in partitions.SCHEMES.values() for key in signature(one).parameters}

    assert partitions.SCHEMES.keys() == {*get_args(SchemeName)}
    assert keys | {"scheme", "sha256", "args"} == PartitionConfig.model_fields.keys()


@pytest.mark.slow
def test_tables_have_the_documented_types_and_the_numbers_of_the_summary(finished):
    assert finished.metrics.dtypes.astype(str).to_dict() == tables.METRICS
    assert finished.per_class.dtypes.astype(str).to_dict() == tables.PER_CLASS
    assert finished.confusion.dtypes.astype(str).to_dict() == tables.CONFUSION
    kinds = finished.clients.dtypes.astype(str).to_dict()
    absent = ("name", "shift")  # of clients without names or shifts
    assert kinds.items() >= {k: v for k, v in tables.CLIENTS.items() if k not in absent}.items()
    written = reading.read(finished.path)
    assert [*finished.metrics.itertuples(index=False, name=None)] == [*map(tuple, written.rows)]
    last = finished.per_class[finished.per_class["moment"] == "last"]
    counts, sizes = finished.partition.counts, finished.partition.sizes
    assert last["train_support"].tolist() == counts.sum().tolist()
    assert finished.clients["train_size"].tolist()[:4] == counts.sum(axis=1).tolist()
    for moment in ("best", "last"):
        clients = finished.clients.query("moment == @moment")
        assert clients["validation_size"].tolist() == sizes["validation"].tolist()
        for part, prefix in (("test", ""), ("validation", "validation_")):
            size, wanted = clients[f"{part}_size"], finished.summary[moment][part]
            own = clients[f"{prefix}accuracy"]
            assert own.mean() == pytest.approx(wanted["accuracy_mean"])
            assert (own * size).sum() / size.sum() == pytest.approx(wanted["accuracy"])


@pytest.mark.slow
def test_names_of_classes_are_text_as_written_and_a_damaged_table_is_named(copied):
    table = (copied / "per_class.csv").read_text().replace("last,0,0,", "last,0,NA,")
    (copied / "per_class.csv").write_text(table.replace("last,1,1,", "last,1,'=1+1,"))

    assert fl.load(copied).per_class["name"].tolist()[:2] == ["NA", "=1+1"]
    (copied / "clients.csv").write_text("moment,client\nlast,x\n")
    with pytest.raises(fl.DataError, match=r"clients\.csv.*train_size"):
        fl.load(copied)


@pytest.mark.slow
def test_unfinished_run_has_empty_tables_with_the_same_types(copied):
    for name in ("summary.json", "per_class.csv", "clients.csv", "confusion.csv"):
        (copied / name).unlink()
    found = fl.load(copied)

    assert not found.finished
    assert found.digest is None
    assert found.per_class.dtypes.astype(str).to_dict() == tables.PER_CLASS
    assert found.per_class.empty
    assert found.clients.empty
    assert found.confusion.empty
    assert f"fl.resume({str(copied)!r})" in repr(found)
    assert found._repr_html_()
    with pytest.raises(fl.UserError):
        found.plot("confusion")


@pytest.mark.slow
def test_interrupt_saves_and_resume_continues_exactly(tmp_path, monkeypatch):
    whole = short(tmp_path / "whole", train={"rounds": 4})
    monkeypatch.setattr(running, "display", lambda *_: running.nullcontext(Interrupting()))
    with pytest.raises(KeyboardInterrupt, match=r"fl.resume\('.*'\)") as caught:
        short(tmp_path / "part", train={"rounds": 4}, progress=True)
    monkeypatch.undo()
    [path] = (tmp_path / "part").glob("*/*")
    assert not fl.load(path).finished

    resumed = eval(str(caught.value).partition("with: ")[2])  # what the message says

    assert resumed.digest == whole.digest
    assert resumed.metrics.equals(whole.metrics)
    assert fl.resume(path, progress=False).digest == whole.digest  # nothing is left to do
    with pytest.raises(fl.ConfigError, match=r"`train\.rounds`"):
        fl.resume(path, train={"rounds": 5})


def test_load_refuses_what_is_no_folder_of_flbench(tmp_path):
    (tmp_path / "below" / "run").mkdir(parents=True)
    (tmp_path / "below" / "run" / "config.yaml").touch()
    for path in (tmp_path / "nothing", tmp_path / "below", tmp_path):
        with pytest.raises(fl.UserError, match=str(path)):
            fl.load(path)


@pytest.mark.slow
def test_runs_lists_what_differs(finished, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(finished.path, root / "a")
    other = short(root / "more", {"name": "fedprox", "mu": 0.5}, seed=3, train={"batch_size": 16})
    found = fl.runs(root)

    assert found["method"].tolist() == ["fedavg", "fedprox"]
    assert found["seed"].tolist() == [0, 3]
    assert found["train.batch_size"].tolist() == [32, 16]
    assert "train.local_epochs" not in found  # the same in both
    assert found["path"].tolist()[1] == str(other.path)
    assert found["test.accuracy"][1] == other.summary["test"]["accuracy"]
    assert found["up_bytes"][1] == other.summary["communication"]["up_bytes"]
    (root / "a" / "summary.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"summary\.json"):
        assert len(fl.runs(root)) == 1
    with pytest.raises(fl.UserError, match="nothing"):
        fl.runs(root / "nothing")
    (tmp_path / "empty").mkdir()
    assert fl.runs(tmp_path / "empty").empty


@pytest.mark.slow
def test_partition_before_a_run_is_the_one_of_the_run(finished, tmp_path, capfd):
    before = fl.partition("digits", PARTITION)

    assert before.hash == finished.partition.hash
    pd.testing.assert_frame_equal(before.counts, finished.partition.counts)
    pd.testing.assert_frame_equal(before.sizes, finished.partition.sizes)
    assert short(tmp_path, partition=before).digest == finished.digest
    assert capfd.readouterr() == ("", "")  # without progress

    fl.partition("digits", PARTITION, out=tmp_path / "saved.npz")
    loaded = fl.partition("digits", fl.FromFile(path=tmp_path / "saved.npz"))
    assert loaded.hash == before.hash


@pytest.mark.slow
def test_pictures_are_figures_outside_pyplot(finished):
    import matplotlib.pyplot as plt

    figures = [finished.plot(name) for name in ("curves", "per_class", "confusion")]
    figures.append(finished.partition.plot())
    for figure in figures:
        figure.canvas.draw()
        assert figure.axes
    assert not plt.get_fignums()
    drawn = np.asarray(finished.plot("confusion", split="validation").axes[0].images[0].get_array())
    rows = finished.confusion[finished.confusion["split"] == "validation"]
    assert drawn.sum() == pytest.approx(rows["true"].nunique())  # each row sums to one
    with pytest.raises(fl.UserError, match="`confusion`"):
        finished.plot("confuson")


@pytest.mark.slow
def test_representations_escape_names(copied):
    text = (copied / "summary.json").read_text()
    (copied / "summary.json").write_text(text.replace('"digits"', '"<b>digits</b>"'))

    shown = fl.load(copied)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;digits" in shown


class Stumbling(fl.Callback):
    """Remembers the rounds that it has seen, and fails in one of them."""

    def __init__(self, fails_in=None):
        self.fails_in, self.seen = fails_in, []

    def on_round_end(self, run, metrics):
        self.seen.append(run.round)
        if run.round == self.fails_in:
            raise OSError("no paper in the printer")

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.slow
def test_callbacks_of_a_run_and_of_its_resume(finished, tmp_path):
    with pytest.raises(fl.RunError, match=r"Stumbling.*fl\.resume") as caught:
        short(tmp_path, callbacks=[Stumbling(fails_in=1)])
    assert isinstance(caught.value.__cause__, OSError)
    [path] = tmp_path.glob("*/*")
    callback = Stumbling()
    run = fl.resume(path, callbacks=callback, progress=False)

    assert callback.seen == [1, 2]
    assert run.digest == finished.digest


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (PermissionError(13, "Permission denied", "x.npz"), fl.UserError),
        (OSError(28, "No space left on device", "m.csv"), fl.RunError),
        (RuntimeError("CUDA out of memory. Tried"), fl.RunError),
        (RuntimeError("a defect"), RuntimeError),
    ],
)
def test_errors_of_the_system_are_those_of_the_command_line(raised, kind, monkeypatch):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(running.lifecycle, "run", fail)
    with pytest.raises(kind) as caught:
        fl.run("fedavg", progress=False)

    assert caught.value is raised or caught.value.__cause__ is raised
