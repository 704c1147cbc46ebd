"""A trial without Ray: its files, its samples, and how it goes on."""

import dataclasses
import hashlib
import sys

import cloudpickle
import pytest
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from flbench.config import resolve
from flbench.config.sources import Layer
from flbench.core.errors import UserError
from flbench.core.tree import digest
from flbench.data import partition_files
from flbench.experiment import assembly, checkpoint
from flbench.metrics import names as metric_names
from flbench.results import metrics_file
from flbench.tuning import trial
from flbench.tuning.study import StudyFolder, TrialFolder
from flbench.workers.portable import portable
from flbench.workers.shipping import NOTHING, Parcel
from tests.support import config_of, run

pytestmark = pytest.mark.slow

ITEMS = ("partition.seed=0", "train.rounds=4", "evaluation.every=2", "output.checkpoint_every=1")


@pytest.fixture(scope="module")
def federation():
    return assembly.load_federation(config_of(*ITEMS))


def base_of(federation, method="fedavg", items=ITEMS, **changes):
    """What all trials of a method have in common."""
    config = config_of(f"algorithm={method}", *items)
    files = partition_files.encode(federation.partition, federation.dataset, config.partition)
    return dataclasses.replace(trial.Base(Layer(config.tree()), files, NOTHING), **changes)


class Killed(BaseException):
    """The end of a worker process."""


def trained(folder, base, federation, params=None, metric="accuracy", ends=None, kill=Killed):
    """Train a trial; return what it reports. It is killed when it reports round `ends`."""
    reports = []

    def report(number, score):
        reports.append((number, score))
        if number == ends:
            raise kill

    tree = base.config.tree
    params = {"train.optimizer.lr": 0.1} if params is None else params
    given = {"seed": tree["seed"], "rounds": tree["train"]["rounds"], "params": params}
    try:
        trial.train(folder, base, federation, given, metric, report)
    except kill:
        assert ends is not None
    return reports


@pytest.fixture
def folders(tmp_path):
    """Folders of trials of a study."""
    return [TrialFolder(tmp_path / "study", "fedavg", k) for k in range(4)]


def weights_in(path):
    """Return the digest of the last checkpoint of a trial or run."""
    return digest([load_file(path / "checkpoints" / "last.safetensors")])


def test_trial_trains_as_a_run_with_its_parameters(federation, folders, tmp_path):
    """Its last evaluation has the metrics of probabilities too, for the loss of the trial."""
    reports = trained(folders[0], base_of(federation, "fedproto"), federation, metric="macro_f1")

    items = (*ITEMS, "train.optimizer.lr=0.1", "evaluation.probabilities=true")
    path, _ = run(tmp_path / "runs", "algorithm=fedproto", *items)
    wanted = [
        row
        for row in metrics_file.read(path / "metrics.csv")
        if row.split in ("validation", "train", "server", "setup")
        and (
            (row.round == 4 and not row.protocol.endswith("@local"))
            or row.metric not in metric_names.PROBABILITY_WITH_MEANS
        )
    ]
    assert metrics_file.read(folders[0].path / "metrics.csv") == wanted
    own = [row for row in wanted if row[1:3] == ("validation", "personal")]
    assert reports == [(row.round, row.value) for row in own if row.metric == "macro_f1"]
    record = folders[0].read()
    assert (record.state, record.round, record.rounds) == ("finished", 4, 4)
    assert record.score == reports[-1][1]
    [loss] = [row.value for row in own if row.metric == "nll"]
    assert record.loss == loss
    for name in ("config.yaml", "partition.npz", "partition.json", "provenance.json"):
        assert (folders[0].path / name).is_file()
    assert not (folders[0].path / "summary.json").exists()


class Dropping(nn.Module):
    """Dropout as a layer, and as a function."""

    def __init__(self, shape, classes, rate=0.5):
        super().__init__()
        self.rate = rate
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.drop(functional.dropout(x.flatten(1), self.rate, self.training)))


@pytest.mark.parametrize(
    ("method", "net", "params"),
    [
        ("fedper", [f"model={__name__}:Dropping"], {"model.args.rate": 0.2}),
        ("ft", ["model=lenet5", "model.freeze=backbone"], {}),
        ("fedper", ["model=lenet5", "model.lora.rank=1"], {"model.lora.rank": 2}),
    ],
    ids=["dropout", "features of a frozen backbone", "adapters"],
)
def test_trials_on_any_net_are_runs(tmp_path, folders, method, net, params):
    if "model.lora.rank" in params:
        pytest.importorskip("peft")
    items = [*net, "partition.seed=0", "partition.clients=3", "partition.samples=120"]
    items += ["train.rounds=2", "output.keep_trials=all"]
    federation = assembly.load_federation(config_of(*items))
    params = {"train.optimizer.lr": 0.05, **params}

    trained(folders[0], base_of(federation, method, items), federation, params)

    items += [f"algorithm={method}", *(f"{key}={value}" for key, value in params.items())]
    path, summary = run(tmp_path / "runs", *items)
    assert weights_in(folders[0].path) == weights_in(path)
    assert resolve.read(folders[0].path / "config.yaml").hash() == summary["config_hash"]


def test_search_never_reads_a_test_sample(federation, folders):
    """Test samples without a number, other labels: the same trial, to the byte."""
    labels, samples = federation.y.clone(), federation.x.float()
    federation = dataclasses.replace(federation, x=samples.clone())
    for rows in (*federation.partition.parts["test"], federation.common):
        labels[rows] = (labels[rows] + 1) % 10
        samples[rows] = float("nan")
    other = dataclasses.replace(federation, y=labels, x=samples)

    for folder, one in zip(folders, (federation, other), strict=False):
        trained(folder, base_of(federation), one)

    first, second = (folder.path / "metrics.csv" for folder in folders[:2])
    assert first.read_bytes() == second.read_bytes()
    assert {row.split for row in metrics_file.read(first)} == {"train", "validation"}
    assert weights_in(folders[0].path) == weights_in(folders[1].path)


@pytest.fixture
def written(monkeypatch):
    """The rounds of the checkpoints that are written, in order."""
    rounds, save = [], checkpoint.save

    def counted(path, state, *rest):
        rounds.append(state.round)
        return save(path, state, *rest)

    monkeypatch.setattr(checkpoint, "save", counted)
    return rounds


EACH = (*ITEMS, "evaluation.every=1")


@pytest.mark.parametrize(
    ("items", "ends"), [(EACH, 1), ((*EACH, "output.checkpoint_seconds=1000"), 3)]
)
def test_killed_trial_goes_on_from_its_checkpoint_and_ends_alike(
    federation, folders, written, items, ends
):
    """Also where nothing was saved since the best round."""
    base = base_of(federation, items=items, resume="fl.resume('studies/a')")
    straight = trained(folders[0], base, federation)
    assert len(written) == len(set(written))  # one file for the best and the last round
    del written[:]

    killed = trained(folders[1], base, federation, ends=ends)
    saved = max(written, default=0)
    again = trained(folders[1], base, federation)

    assert killed[: ends - 1] + again[-(4 - ends + 1) :] == straight
    assert again == straight[saved:]
    assert weights_in(folders[1].path) == weights_in(folders[0].path)
    files = (folder.path / "metrics.csv" for folder in folders[:2])
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    assert folders[1].read().state == "finished"


@pytest.mark.parametrize("keep", ["best", "all"])
def test_a_trial_that_the_scheduler_has_stopped_is_saved_if_all_are_kept(
    federation, folders, written, keep
):
    items = (*ITEMS, "output.checkpoint_seconds=1000", f"output.keep_trials={keep}")
    trained(folders[0], base_of(federation, items=items), federation, ends=2, kill=SystemExit)

    assert written == ([2] if keep == "all" else [])
    assert folders[0].read().state == "running"  # the process with the scheduler writes the end


class OfMissingModule:
    """An object that a worker process cannot read."""

    def __reduce__(self):
        return __import__, ("module_of_this_process_alone",)


def test_trial_that_cannot_read_what_it_is_sent_fails_with_the_reason(
    federation, folders, monkeypatch
):
    # What arrives sets the folders in which its process looks for modules.
    monkeypatch.setattr(sys, "path", [*sys.path])
    content = {"model": OfMissingModule()}, {}, {}
    sealed = Parcel(cloudpickle.dumps(portable(content, cloudpickle.dumps)))

    assert not trained(folders[0], base_of(federation, parcel=sealed), federation)

    record = folders[0].read()
    assert record.state == "failed"
    assert "module_of_this_process_alone" in record.reason


def test_run_folder_of_another_trial_goes_on_with_own_parameters(federation, folders):
    """As in population based training: the weights of one trial, the parameters of another."""
    donor, heir = base_of(federation), base_of(federation, items=(*ITEMS, "train.optimizer.lr=0.3"))
    trained(folders[0], donor, federation, ends=4)
    weights = weights_in(folders[0].path)

    trial.take_over(folders[0].path, heir, {})

    assert weights_in(folders[0].path) == weights
    config = resolve.read(folders[0].path / "config.yaml")
    assert config.train.optimizer.lr == 0.3
    saved = folders[0].path / "checkpoints" / "last.safetensors"
    assert checkpoint.load(saved, config.hash())[0].round > 0


def test_trial_that_the_method_refuses_is_failed_with_the_reason(federation, folders):
    assert not trained(folders[0], base_of(federation), federation, {"train.optimizer.lr": -1.0})

    record = folders[0].read()
    assert (record.score, record.state) == (None, "failed")
    for part in ("train.optimizer.lr", folders[0].name):
        assert part in record.reason


def test_trial_whose_clients_all_diverge_ends_early(federation, folders):
    """The samples, which lie in memory that all trials share, are the same afterwards."""
    read_only = federation.x.numpy().copy()
    read_only.setflags(write=False)
    shared = federation.without_samples().with_samples(read_only)

    trained(folders[0], base_of(federation), shared, {"train.optimizer.lr": 1e30})

    assert (shared.x.numpy() == federation.x.numpy()).all()
    record = folders[0].read()
    assert record.state == "diverged"
    assert record.round < 4
    assert record.reason


def test_study_is_worked_on_by_one_process_at_a_time(tmp_path):
    folder = StudyFolder.create(tmp_path, "study")
    folder.write("study.json", "{}")

    with pytest.raises(UserError, match=folder.path.name):
        StudyFolder.reopen(folder.path)

    folder.close()
    StudyFolder.reopen(folder.path).close()
