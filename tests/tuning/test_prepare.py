"""What a study refuses before anything starts, and what it takes over on resume."""

import json

import numpy as np
import pytest

from flbench.cli import app
from flbench.config import trust
from flbench.config.schema import EngineConfig
from flbench.config.sources import Layer, from_overrides
from flbench.core.errors import ConfigError, DataError, RunError, UserError
from flbench.core.parts import METRICS, offered
from flbench.experiment import estimate
from flbench.tuning import prepare
from flbench.tuning.request import TuneRequest, resources_of
from tests.api.own_parts import accuracy
from tests.support import SMALL


def layers_of(*methods, more=()):
    items = [item for item in SMALL if not item.startswith("engine.")]
    return {
        method: [
            from_overrides([*items, *more]),
            Layer({"algorithm": {"name": method}}, {"algorithm.name": "--algo"}),
        ]
        for method in methods
    }


@pytest.fixture
def begin(tmp_path):
    """Prepare a study and make its folder; close it afterwards."""
    begun = []

    def made(*methods, more=(), **asked):
        request = TuneRequest(methods, out=tmp_path / "studies", **asked)
        prepared = prepare.prepare(request, layers_of(*methods, more=more))
        begun.append(prepare.create(prepared, ["flbench", "tune", *more]))
        return begun[-1], prepared

    yield made
    for each in begun:
        each.close()


OWN = "evaluation.metrics.{}.source=tests.api.own_parts:{}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fedafg"], "fedavg"),
        (["fedavg", "--metric", "accuracies"], "metric"),
        (["fedavg", "--metric", "confusable_f1"], "evaluation.confusable"),
        (["fedavg", "--metric", "rare_recall", "data.name=digits"], "evaluation.rare"),
        (["fedavg", "--metric", "auroc"], "metric"),
        (["fedavg", "--metric", "wrong_worst10", OWN.format("wrong", "error_rate")], "metric"),
        (["fedavg", "train.early_stopping.patience=3"], "train.early_stopping.patience"),
        (["fedavg", "--vary", "partition"], "vary"),
        (["fedavg", "--scheduler", "pbt"], "scheduler"),
        (["fedavg", "--scheduler", "asha", "--equal", "steps"], "equal"),
        (["hfcd", "--search", "grid"], "trials"),
        (["fedavg", "partition.split=[0.8,0.0,0.2]"], "partition.split"),
        (["fedavg", "train.optimizer.lr=0.1"], "fedavg"),
        (["slapfl"], "model.name"),  # the net of digits has no convolutions
        (["--resume", "nowhere", "--trials", "40"], "--trials"),
        (["fedavg", "--address", "auto"], "jobs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    words, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert app.main(["tune", *words]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "Traceback" not in said
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_methods_are_compared_on_the_same(begin):
    """Study.json has their spaces, with the defaults of what is searched."""
    folder, prepared = begin("hfcd", "fedproto", more=("train.optimizer.lr=0.05",))

    first, second = prepared.configs.values()
    for section in ("seed", "data", "partition", "train", "evaluation"):
        assert getattr(first, section) == getattr(second, section)
    assert first.partition.seed == first.seed
    assert first.engine.threads == 1
    entry = json.loads((folder.path / "study.json").read_text())["methods"]["hfcd"]
    assert "train.optimizer.lr" not in entry["defaults"]  # settled on the command line
    assert entry["defaults"]["algorithm.tau"] == first.algorithm.tau
    assert set(entry["space_tree"]["space"]) == set(entry["defaults"])
    assert first.train.optimizer.lr == second.train.optimizer.lr == 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "counted"), [("right_mean", [0, 1, 2]), ("rare_recall", [2])])
def test_study_json_counts_the_validation_samples_of_the_metric(begin, tmp_path, metric, counted):
    y = np.repeat([0, 1, 2], [100, 80, 20])
    x = np.random.default_rng(0).random((200, 4, 4), dtype=np.float32)
    np.savez(tmp_path / "tail.npz", train_images=x, train_labels=y)
    more = (f"data.path={tmp_path}/tail.npz", OWN.format("right", "accuracy"))

    folder, prepared = begin("fedavg", more=more, metric=metric)

    header = json.loads((folder.path / "study.json").read_text())
    rows = np.concatenate(prepared.federation.partition.parts["validation"])
    assert header["validation"] == sum(int((y[rows] == k).sum()) for k in counted)


@pytest.mark.slow
def test_reopened_study_is_the_one_that_was_begun(begin):
    folder, first = begin(
        "fedcpmd", trials=5, search="optuna", concurrent=2, more=("model=lenet5",)
    )

    again = prepare.reopen(folder, {"concurrent": 1})

    assert again.resources.concurrent == 1
    assert again.batch == first.batch
    for option in ("trials", "search", "scheduler", "metric"):
        assert getattr(again.request, option) == getattr(first.request, option)
    assert again.spaces["fedcpmd"].parameters == first.spaces["fedcpmd"].parameters
    assert again.configs["fedcpmd"].tree() == first.configs["fedcpmd"].tree()
    assert prepare.reopen(folder, {}).resources == first.resources
    proposed = [each.proposals()["fedcpmd"].given({}) for each in (first, again)]
    assert proposed[0] == proposed[1]
    assert len(proposed[0]) == 2


@pytest.mark.slow
def test_reopened_study_joins_no_cluster_that_a_folder_of_others_names(begin, monkeypatch):
    folder, _ = begin("fedavg", trials=1, concurrent=1, gpus=0, address="192.0.2.1:6379")
    assert prepare.reopen(folder, {}).resources.address == "192.0.2.1:6379"
    monkeypatch.setattr(trust, "_is_listed", lambda place: False)  # that of another user

    with pytest.raises(ConfigError, match=r"(?s)study\.json.*192\.0\.2\.1:6379.*--run-code"):
        prepare.reopen(folder, {})

    again = prepare.reopen(folder, {"address": "192.0.2.1:6379"})
    assert again.resources.address == "192.0.2.1:6379"


@pytest.mark.slow
def test_reopened_study_asks_for_its_metric_again(begin):
    metrics = {METRICS: {"right": lambda confusion: accuracy(confusion)}}
    with offered(metrics):
        folder, _ = begin("fedavg", more=("evaluation.metrics.right.source=object",))
        prepare.reopen(folder, {})

    with pytest.raises(ConfigError, match="metrics"):
        prepare.reopen(folder, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("study.json", {"partition_hash": "0" * 64}, "partition"),
        ("study.json", {"batch": None, "trials": "many"}, r"study\.json.*`trials`"),
        ("study.json", {"metric": "acuracy"}, r"study\.json.*`metric`"),
        ("study.json", {"methods": None}, r"study\.json"),
        ("partition.json", {"data": "f" * 64}, "ffffffffffff"),  # other samples, the same labels
    ],
)
def test_study_of_other_data_or_damaged_is_refused(begin, name, changes, named):
    folder, _ = begin("fedavg")
    file = folder.path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(UserError, match=named):
        prepare.reopen(folder, {})


@pytest.mark.slow
def test_equal_steps_need_a_method_whose_steps_can_be_counted(begin, monkeypatch):
    real = estimate.measure

    def measure(experiment):
        if experiment.config.algorithm.name == "local":
            raise RunError("no")
        return real(experiment)

    monkeypatch.setattr(estimate, "measure", measure)
    with pytest.raises(UserError, match=r"`equal=steps`.* local "):
        begin("fedavg", "local", equal="steps", scheduler="none")


@pytest.mark.slow
def test_reopened_study_keeps_its_steps(begin):
    folder, _ = begin("fedavg", "local", "ditto", trials=4)
    file = folder.path / "study.json"
    header = json.loads(file.read_text())

    def trials(**steps):
        for name, one in header["methods"].items():
            one.pop("steps", None)
            one |= {"steps": steps[name]} if name in steps else {}
        file.write_text(json.dumps(header))
        return prepare.reopen(folder, {}).trials

    assert trials(fedavg=10, local=10, ditto=20) == {"fedavg": 4, "local": 4, "ditto": 2}
    assert set(trials(fedavg=0, local=10, ditto=20).values()) == {4}  # none is the cheapest
    with pytest.raises(DataError, match=r"study\.json"):
        trials(fedavg=10, local=10)


def test_engines_that_no_trial_could_have_are_refused():
    for engine, gpus, named in (
        ({"device": "cpu"}, 0.5, "engine.device=cpu"),
        ({"device": "cuda"}, 0.0, "engine.device=cuda"),
        ({"name": "ray"}, None, "engine.name=ray"),
    ):
        with pytest.raises(ConfigError, match=named):
            resources_of(TuneRequest(("fedavg",), gpus=gpus), EngineConfig(**engine))


def test_cores_are_dealt_to_trials(monkeypatch):
    monkeypatch.setattr("flbench.tuning.request.available_cores", lambda: 8)
    one = EngineConfig(threads=1)

    assert resources_of(TuneRequest(("fedavg",)), one).concurrent == 8
    assert resources_of(TuneRequest(("fedavg",)), EngineConfig(threads=4)).concurrent == 2
    on_gpu = resources_of(TuneRequest(("fedavg",)), EngineConfig(threads=1, device="cuda:1"))
    assert (on_gpu.engine.device, on_gpu.gpus) == ("cuda", 1.0)


@pytest.mark.slow
def test_secret_of_an_address_is_in_no_file_of_a_study(begin):
    address = "http://ann:s3cret@127.0.0.1:9"

    folder, prepared = begin("fedavg", "fedproto", more=[f"tracking.uri={address}"])

    files = [file for file in folder.path.rglob("*") if file.is_file()]
    assert len(files) > 3
    assert not [file for file in files if b"s3cret" in file.read_bytes()]
    assert "tracking.uri=http://***@127.0.0.1:9" in folder.description()["command"]
    assert prepared.config.tracking.uri == address
    assert "s3cret" not in repr(prepared)
