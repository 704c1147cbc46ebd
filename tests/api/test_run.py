import pickle
import random
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

import flbench as fl
from flbench.api import partitions, run_tables, running
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


def test_import_is_light():
    code = (
        "import sys, time; begin = time.perf_counter(); import flbench;"
        " print(time.perf_counter() - begin, [m for m in ('torch', 'pandas') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    seconds, loaded = answer.stdout.split(maxsplit=1)

    assert loaded.strip() == "[]"
    assert float(seconds) < 0.5  # without PyTorch; a loaded machine needs a margin


def test_all_names_of_the_interface_exist():
    for name in fl.__all__:
        assert getattr(fl, name) is not None
        assert name in dir(fl)
    assert fl.metrics.__name__ == "flbench.metrics"  # a subpackage
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
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
def test_what_the_process_has_set_does_not_change_a_run(finished, tmp_path):
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    states = (default_dtype(), torch.device("meta"), torch.no_grad(), torch.inference_mode())
    with ExitStack() as stack:
        for state in (*states, torch.autocast("cpu")):
            stack.enter_context(state)
        run = short(tmp_path)
    assert run.digest == finished.digest


class SetsType(torch.nn.Module):
    """A net that changes PyTorch's default type."""

    def __init__(self, shape, classes):
        super().__init__()
        self.fc = torch.nn.Linear(64, classes)

    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        return self.fc(x.flatten(1))


@pytest.mark.slow
def test_the_default_type_that_a_net_sets_ends_with_its_call(tmp_path):
    class Usual(SetsType):
        def forward(self, x):
            return self.fc(x.flatten(1))

    first, second = (short(tmp_path, model=kind) for kind in (SetsType, Usual))
    assert first.digest == second.digest
    assert torch.get_default_dtype() == torch.float32


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
        ({"train": {"optimizer": "sdg"}}, "train.optimizer.name"),
        ({"train.rounds": 0}, "train.rounds"),
        ({"train": {"rounds": len}}, "train.rounds"),
        ({"partition": fl.Dirichlet(alpha=-1.0)}, "partition.alpha"),
        ({"partition": "dirichle"}, "partition.scheme"),
        ({"algorithm": "fedagv"}, "algorithm.name"),
    ],
)
def test_wrong_arguments_are_refused_by_key(keys, key):
    with pytest.raises(fl.ConfigError) as caught:
        fl.run(progress=False, **keys)
    assert caught.value.key == key


def test_dotted_key_may_be_null(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("train: {clip: 1.0}\n")

    config, _ = resolve(running.arguments.layers("run", file, {"train.clip": None, "seed": None}))

    assert config.train.clip is None
    assert config.seed == 0


@pytest.mark.slow
def test_what_a_run_returns_can_be_changed_without_changing_the_run(finished):
    run = fl.load(finished.path)
    accuracy, x = run.summary["test"]["accuracy"], np.zeros((2, 8, 8), dtype=np.uint8)
    scores = run.predict(x, client=0)

    run.summary["test"]["accuracy"] = 2.0
    run.metrics.drop(run.metrics.index, inplace=True)
    for parameter in run.model(client=0).parameters():
        torch.nn.init.zeros_(parameter)

    assert run.summary["test"]["accuracy"] == accuracy
    assert len(run.metrics) > 0
    assert torch.equal(run.predict(x, client=0), scores)
    assert torch.equal(run.predict(x, client="0"), scores)


def test_wrong_keys_of_a_scheme_are_named():
    with pytest.raises(fl.ConfigError, match=r"not a key of fl.Dirichlet. Did you mean `alpha`"):
        fl.Dirichlet(alhpa=0.1)
    with pytest.raises(TypeError, match="positional"):
        fl.Dirichlet(0.1)


def test_sections_can_be_given_by_dicts_names_objects_and_a_file(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("train: {rounds: 7, batch_size: 8}\nalgorithm: {name: hfcd, tau: 0.5}\n")
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
        },
    )
    config, origins = resolve(layers)

    assert (config.algorithm.name, config.algorithm.tau) == ("hfcd", 0.5)
    assert (config.train.rounds, config.train.batch_size) == (7, 16)
    assert (config.train.optimizer.name, config.train.optimizer.lr) == ("adam", 0.5)
    assert (config.partition.scheme, config.model.name) == ("iid", "lenet5")
    assert config.tracking.mlflow is False
    assert origins["train.rounds"] == f"{file}:1"
    assert origins["train.optimizer.lr"] == "argument of fl.run"
    assert optimizer == {"name": "adam"}  # the user's dict is not changed


def test_every_scheme_and_key_of_a_partition_has_a_function():
    keys = {key for one in partitions.SCHEMES.values() for key in signature(one).parameters}

    assert partitions.SCHEMES.keys() == {*get_args(SchemeName)}
    assert keys | {"scheme", "sha256", "args"} == PartitionConfig.model_fields.keys()


@pytest.mark.slow
def test_tables_have_the_documented_types(finished):
    written = reading.read(finished.path)

    assert finished.metrics.dtypes.astype(str).to_dict() == run_tables.METRICS
    assert finished.per_class.dtypes.astype(str).to_dict() == tables.PER_CLASS
    assert finished.confusion.dtypes.astype(str).to_dict() == run_tables.CONFUSION
    kinds = finished.clients.dtypes.astype(str).to_dict()
    absent = {"name", "shift"}  # of clients without names or shifts
    assert {name: kinds[name] for name in tables.CLIENTS if name not in absent} == {
        name: kind for name, kind in tables.CLIENTS.items() if name not in absent
    }
    assert list(finished.metrics.itertuples(index=False, name=None)) == [
        tuple(row) for row in written.rows
    ]
    last = finished.per_class[finished.per_class["moment"] == "last"]
    counts = finished.partition.counts
    assert last["train_support"].tolist() == counts.sum().tolist()
    assert finished.clients["train_size"].tolist()[:4] == counts.sum(axis=1).tolist()
    test = finished.confusion[finished.confusion["split"] == "test"]
    correct = test.loc[test["true"] == test["predicted"], "count"].sum()
    accuracy = finished.summary["last"]["test"]["accuracy"]
    assert correct / test["count"].sum() == pytest.approx(accuracy)
    assert finished.summary["test"] == finished.summary["best"]["test"]


@pytest.mark.slow
def test_clients_have_validation_metrics_whose_mean_is_that_of_the_round(finished):
    for moment in ("best", "last"):
        clients = finished.clients.query("moment == @moment")
        for part, prefix in (("test", ""), ("validation", "validation_")):
            sizes, wanted = clients[f"{part}_size"], finished.summary[moment][part]
            own = clients[f"{prefix}accuracy"]
            assert own.mean() == pytest.approx(wanted["accuracy_mean"])
            assert (own * sizes).sum() / sizes.sum() == pytest.approx(wanted["accuracy"])
    assert clients["validation_size"].tolist() == finished.partition.sizes["validation"].tolist()


@pytest.mark.slow
def test_names_of_classes_are_text_as_written(copied):
    table = (copied / "per_class.csv").read_text().replace("last,0,0,", "last,0,NA,")
    (copied / "per_class.csv").write_text(table.replace("last,1,1,", "last,1,'=1+1,"))

    assert fl.load(copied).per_class["name"].tolist()[:2] == ["NA", "=1+1"]


@pytest.mark.slow
def test_damaged_table_is_named(copied):
    (copied / "clients.csv").write_text("moment,client\nlast,x\n")

    with pytest.raises(fl.DataError, match=r"clients\.csv is damaged .*no column train_size"):
        fl.load(copied).clients  # noqa: B018


@pytest.mark.slow
def test_unfinished_run_has_empty_tables_with_the_same_types(copied):
    for name in ("summary.json", "per_class.csv", "clients.csv", "confusion.csv"):
        (copied / name).unlink()
    found = fl.load(copied)

    assert not found.finished
    assert found.digest is None
    assert found.per_class.empty
    assert found.per_class.dtypes.astype(str).to_dict() == tables.PER_CLASS
    assert found.clients.empty
    assert found.confusion.empty
    assert f"fl.resume({str(copied)!r})" in repr(found)
    with pytest.raises(fl.UserError, match="unfinished"):
        found.plot("confusion")
    assert "unfinished" in found._repr_html_()


@pytest.mark.slow
def test_run_can_be_pickled(finished):
    again = pickle.loads(pickle.dumps(finished))

    assert again.path == finished.path
    assert again.digest == finished.digest


@pytest.mark.slow
def test_interrupt_saves_and_resume_continues_exactly(tmp_path, monkeypatch):
    whole = short(tmp_path / "whole", train={"rounds": 4})
    monkeypatch.setattr(running, "display", lambda *_: running.nullcontext(Interrupting()))
    with pytest.raises(KeyboardInterrupt, match=r"saved. Resume with: fl.resume\('.*'\)") as caught:
        short(tmp_path / "part", train={"rounds": 4}, progress=True)
    monkeypatch.undo()
    [path] = (tmp_path / "part").glob("*/*")
    assert str(path) in str(caught.value)
    assert not fl.load(path).finished

    resumed = eval(str(caught.value).partition("with: ")[2])  # what the message says

    assert resumed.digest == whole.digest
    assert resumed.metrics.equals(whole.metrics)
    assert fl.resume(path, progress=False).digest == whole.digest  # nothing is left to do
    with pytest.raises(fl.ConfigError, match=r"`train.rounds` was 4 when"):
        fl.resume(path, train={"rounds": 5})


@pytest.mark.slow
def test_progress_is_shown_or_silenced(tmp_path, capfd):
    short(tmp_path, progress=True)
    shown = capfd.readouterr()
    assert "round 2/2" in shown.err
    assert not shown.out

    short(tmp_path, progress=False)
    silent = capfd.readouterr()
    assert silent.err == silent.out == ""


def test_load_refuses_what_is_no_folder_of_flbench(tmp_path):
    for path, message in ((tmp_path / "nothing", "does not exist"), (tmp_path, "not a run folder")):
        with pytest.raises(fl.UserError, match=message):
            fl.load(path)
    (tmp_path / "below" / "run").mkdir(parents=True)
    (tmp_path / "below" / "run" / "config.yaml").touch()
    with pytest.raises(fl.UserError, match=r"fl\.runs\("):
        fl.load(tmp_path)


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
    assert found["seconds"].dtype == "float64"

    (root / "a" / "summary.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"left out: .*summary\.json"):
        assert len(fl.runs(root)) == 1
    with pytest.raises(fl.UserError, match="does not exist"):
        fl.runs(root / "nothing")
    (tmp_path / "empty").mkdir()
    empty = fl.runs(tmp_path / "empty")
    assert empty.empty
    assert list(empty.columns[:4]) == ["method", "dataset", "model", "seed"]


def test_run_that_trains_nothing_is_an_error(tmp_path):
    with pytest.raises(fl.RunError, match="no client finished a training"):
        short(tmp_path, train={"batch_size": 10_000, "last_batch": "drop"})


@pytest.mark.slow
def test_partition_before_a_run_is_the_one_of_the_run(finished, tmp_path):
    before = fl.partition("digits", PARTITION)

    assert before.hash == finished.partition.hash
    pd.testing.assert_frame_equal(before.counts, finished.partition.counts)
    pd.testing.assert_frame_equal(before.sizes, finished.partition.sizes)
    assert short(tmp_path, partition=before).digest == finished.digest

    fl.partition("digits", PARTITION, out=tmp_path / "saved.npz")
    loaded = fl.partition("digits", fl.FromFile(path=tmp_path / "saved.npz"))
    assert loaded.hash == before.hash


@pytest.mark.slow
def test_models_predict_what_the_run_has_evaluated(finished):
    from flbench.data import partition_files, sources

    dataset = sources.load(finished.config.data)
    parts = partition_files.load(finished.path / "partition.npz", dataset).parts["test"]
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    correct = total = 0
    for client, rows in enumerate(parts):
        scores = finished.predict(client=client, x=dataset.x[rows], checkpoint="last")
        correct += int((scores.argmax(1).numpy() == dataset.y[rows]).sum())
        total += len(rows)
        net = finished.model(client=client, checkpoint="last")
        assert not net.training
        assert isinstance(net, torch.nn.Module)

    assert correct / total == pytest.approx(finished.summary["last"]["test"]["accuracy"])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert finished.predict(dataset.x[:3]).shape == (3, 10)  # the global model
    with pytest.raises(fl.UserError):
        finished.model(client=99)


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
    with pytest.raises(fl.UserError, match="Did you mean `confusion`"):
        finished.plot("confuson")


@pytest.mark.slow
def test_representations_escape_names(copied):
    text = (copied / "summary.json").read_text()
    (copied / "summary.json").write_text(text.replace('"digits"', '"<b>digits</b>"'))

    shown = fl.load(copied)._repr_html_()
    assert "<b>" not in shown
    assert "fedavg on &lt;b&gt;digits" in shown
    assert "4 clients" in repr(fl.load(copied).partition)


class Counting(fl.Callback):
    """Remembers the rounds that it has seen."""

    def __init__(self):
        self.seen = []

    def on_round_end(self, run, metrics):
        self.seen.append(run.round)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Stumbling(fl.Callback):
    def on_round_end(self, run, metrics):
        if run.round == 1:
            raise OSError("no paper in the printer")


@pytest.mark.slow
def test_callbacks_and_loggers_of_a_run_and_of_its_resume(finished, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    def logger():
        return CSVLogger(tmp_path / "logs", version=0)

    first = [Counting(), Stumbling()]
    with pytest.raises(fl.RunError, match=r"callback Stumbling .*Resume with: fl.resume") as caught:
        short(tmp_path / "runs", callbacks=first, logger=logger())
    assert isinstance(caught.value.__cause__, OSError)
    [path] = (tmp_path / "runs").glob("*/*")
    counting = Counting()
    run = fl.resume(path, callbacks=counting, logger=[logger()], progress=False)

    assert counting.seen == [1, 2]
    assert run.digest == finished.digest
    log = pd.read_csv(tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv")
    losses = run.metrics.query("split == 'train' and metric == 'loss'")
    assert list(log["train/loss"].dropna()) == list(losses["value"])


@pytest.mark.slow
def test_early_stopping_ends_a_run(tmp_path, capsys):
    keys = {"train": {"rounds": 9, "optimizer": {"lr": 0.0}}, "evaluation": {"every": 1}}
    run = short(tmp_path, callbacks=fl.EarlyStopping(patience=2), **keys)

    assert run.summary["stopped"]["round"] == run.summary["last"]["round"] == 3
    assert run.finished
    assert "round 1 of 3," in repr(run)
    assert "stopped after 3" in run._repr_html_()
    report = (run.path / "report.html").read_text()
    assert "<dd>9, stopped after 3</dd>" in report
    assert "<dd>1, by validation accuracy</dd>" in report
    assert "stopped after round 3 of 9: validation/personal/accuracy has not improved" in report
    assert main(["show", str(run.path)]) == 0
    assert "1/3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (
            PermissionError(13, "Permission denied", "x.npz"),
            fl.UserError,
            "x.npz: Permission denie",
        ),
        (OSError(28, "No space left on device", "m.csv"), fl.RunError, "m.csv: No space left on"),
        (RuntimeError("CUDA out of memory. Tried"), fl.RunError, "lower train.batch_size"),
        (MemoryError(), fl.RunError, "lower train.batch_size"),
        (RuntimeError("a defect"), RuntimeError, "a defect"),
    ],
)
def test_errors_of_the_system_are_those_of_the_command_line(raised, kind, message, monkeypatch):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(running.lifecycle, "run", fail)
    with pytest.raises(kind) as caught:
        fl.run("fedavg", progress=False)

    assert message in str(caught.value)
    assert caught.value is raised or caught.value.__cause__ is raised
