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


@pytest.mark.parametrize(
    "arguments",
    [
        ("--algo", "fedafg"),
        ("--algo", "fedavg", "--metric", "accuracies"),
        ("--algo", "fedavg", "--metric", "confusable_f1"),
        ("--algo", "fedavg", "--metric", "rare_recall", "data.name=digits"),
        ("--algo", "fedavg", "--metric", "auroc"),
        ("--algo", "fedavg", "train.early_stopping.patience=3"),
        ("--algo", "fedavg", "--vary", "partition"),
        ("--algo", "fedavg", "--scheduler", "pbt"),
        ("--algo", "fedavg", "--scheduler", "asha", "--equal", "steps"),
        ("--algo", "hfcd", "--search", "grid"),
        ("--algo", "fedavg", "partition.split=[0.8,0.0,0.2]"),
        ("--algo", "fedavg", "train.optimizer.lr=0.1"),
        ("--algo", "slapfl", "train.participation=0.5"),
        ("--resume", "nowhere", "--trials", "40"),
        ("--algo", "fedavg", "--address", "auto"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["tune", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "studies").exists()


OWN = "evaluation.metrics.{}.source=tests.api.own_parts:{}"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["right", "right_mean", "right_worst10"])
def test_metric_of_the_users_own_can_score_trials(begin, metric):
    _, prepared = begin("fedavg", more=(OWN.format("right", "accuracy"),), metric=metric)

    assert prepared.request.metric == metric


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("rihgt", "Did you mean `right`"),
        ("wrong", "`metric=wrong`"),
        ("wrong_worst10", "`metric=wrong_worst10`"),
    ],
)
def test_metric_that_cannot_be_maximized_is_refused(begin, metric, said):
    more = (OWN.format("right", "accuracy"), OWN.format("wrong", "error_rate"))
    with pytest.raises(ConfigError, match=said):
        begin("fedavg", more=more, metric=metric)


@pytest.mark.slow
def test_methods_are_compared_on_the_same(begin):
    _, prepared = begin("hfcd", "fedavg", trials=3, seeds=2)

    first, second = prepared.configs.values()
    for section in ("seed", "data", "partition", "train", "evaluation"):
        assert getattr(first, section) == getattr(second, section)
    assert first.partition.seed == first.seed
    assert first.engine.threads == 1
    assert any("fewer than 3 seeds" in note for note in prepared.notes)


@pytest.mark.slow
def test_study_json_has_spaces_and_defaults(begin):
    folder, prepared = begin("hfcd", more=("algorithm.tau=0.25",))

    header = json.loads((folder.path / "study.json").read_text())

    defaults = header["methods"]["hfcd"]["defaults"]
    assert "algorithm.tau" not in defaults  # settled on the command line
    assert defaults["train.optimizer.lr"] == prepared.configs["hfcd"].train.optimizer.lr
    assert set(header["methods"]["hfcd"]["space_tree"]["space"]) == set(defaults)
    assert prepared.configs["hfcd"].algorithm.tau == 0.25
    assert any("algorithm.tau" in note for note in prepared.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "counted"), [("accuracy", [0, 1, 2]), ("rare_recall", [2])])
def test_study_json_counts_the_validation_samples_of_the_metric(begin, tmp_path, metric, counted):
    y = np.repeat([0, 1, 2], [100, 80, 20])
    x = np.random.default_rng(0).random((200, 4, 4), dtype=np.float32)
    np.savez(tmp_path / "tail.npz", train_images=x, train_labels=y)

    folder, prepared = begin("fedavg", more=(f"data.path={tmp_path}/tail.npz",), metric=metric)

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

    with pytest.raises(ConfigError, match=r"fl\.resume\(path, evaluation=\{'metrics'"):
        prepare.reopen(folder, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partition_hash": "0" * 64}, "their partition is another one"),
        ({"batch": None, "trials": "many"}, "`trials`"),
        ({"methods": None}, "damaged"),
    ],
)
def test_study_of_other_data_or_damaged_is_refused(begin, changes, said):
    folder, _ = begin("fedavg")
    file = folder.path / "study.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(UserError, match=said):
        prepare.reopen(folder, {})


@pytest.mark.slow
def test_equal_steps_need_a_method_whose_steps_can_be_counted(begin, monkeypatch):
    real = estimate.measure

    def measure(experiment):
        if experiment.config.algorithm.name == "local":
            raise RunError("no")
        return real(experiment)

    monkeypatch.setattr(estimate, "measure", measure)
    with pytest.raises(UserError, match=r"`equal=steps`.* of local could"):
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
    with pytest.raises(DataError, match="damaged"):
        trials(fedavg=10, local=10)


@pytest.mark.parametrize(
    ("engine", "asked", "said"),
    [
        ({"device": "cpu"}, {"gpus": 0.5}, "engine.device=cpu"),
        ({"device": "cuda"}, {"gpus": 0.0}, "engine.device=cuda"),
        ({"name": "ray", "device": "cuda"}, {"gpus": 0.5}, "engine.name=ray"),
    ],
)
def test_engines_that_no_trial_could_have_are_refused(engine, asked, said):
    with pytest.raises(ConfigError, match=said):
        resources_of(TuneRequest(("fedavg",), **asked), EngineConfig(**engine))


def test_cores_are_dealt_to_trials_and_to_their_workers(monkeypatch):
    monkeypatch.setattr("flbench.tuning.request.available_cores", lambda: 8)
    one = EngineConfig(threads=1)

    assert resources_of(TuneRequest(("fedavg",)), one).concurrent == 8
    assert resources_of(TuneRequest(("fedavg",)), EngineConfig(threads=4)).concurrent == 2
    with_workers = resources_of(
        TuneRequest(("fedavg",), concurrent=2), EngineConfig(name="ray", threads=1)
    )
    assert (with_workers.engine.workers, with_workers.cpus) == (4, 4)
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


@pytest.mark.slow
def test_study_is_not_resumed_on_other_samples_with_the_same_labels(begin):
    folder, _ = begin("fedavg")
    file = folder.path / "partition.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data": "f" * 64}))

    with pytest.raises(UserError, match=r"data .* differ .*ffffffffffff.*Restore"):
        prepare.reopen(folder, {})
