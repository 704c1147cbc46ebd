import pytest

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.schema import Config, ScheduleConfig
from flbench.config.sources import Layer, from_file, from_overrides
from flbench.core.errors import ConfigError
from flbench.models import MODELS
from tests.support import config_of


def resolved(*items: str) -> Config:
    return resolve([from_overrides(items)])[0]


def problems(*items: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(*items)
    return str(caught.value).splitlines()


def test_unknown_key_suggests_the_nearest_and_names_its_place(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("train:\n  round: 3\n")

    with pytest.raises(ConfigError, match=r"`train.round` .*x.yaml:2.*`rounds`"):
        resolve([from_file(file)])


def test_all_errors_are_reported_together():
    found = problems(
        "train.rounds=0", "partition.alpha=-1", "algorithm.name=hfdc", "seed=x", "nope=1"
    )

    assert len(found) == 5
    assert any("`hfcd`" in line for line in found)


WRONG = {
    "train.rounds=1.5": "train.rounds",
    "train.rounds=true": "train.rounds",
    "train.optimizer.lr=nan": "train.optimizer.lr",
    "train.optimizer.nesterov=true": "train.optimizer",
    "train=3": "train",
    "partition.alpha=0": "partition.alpha",
    "partition.scheme=dirichlett": "partition.scheme",
    "partition.scheme=file": "partition",
    "partition.split=[0.5,0.5,0.5]": "partition.split",
    "partition.args.sizes=[[1], [2, 3]]": "partition.args.sizes",
    "engine.device=gpu": "engine.device",
    "tracking.mlflow=maybe": "tracking.mlflow",
    "algorithm=[1]": "algorithm",
    "algorithm.mu=0.5": "algorithm.mu",  # of another method
    "data.normalize=nonee": "data.normalize",
    "data.normalize={mean: [0], std: [0]}": "data.normalize.std.0",
    "data.normalize={mean: [0], std: [1], sd: 1}": "data.normalize.sd",
    "evaluation.metrics.x.sha256=1": "evaluation.metrics.x.source",
    # Terms of the loss
    "train.terms=focal": "train.terms",
    "train.terms=[focall]": "train.terms.0.name",
    "train.terms=[{name: focal, gama: 2}]": "train.terms.0.gama",
    "train.terms=[focal, {name: focal, weight: 0}]": "train.terms.1.weight",
    "train.terms=[{name: focal, gamma: -1}]": "train.terms.0.gamma",
    "train.terms=[{name: label_smoothing, epsilon: 2}]": "train.terms.0.epsilon",
}


def test_wrong_values_are_refused_by_key():
    found = {}
    for item in WRONG:
        with pytest.raises(ConfigError) as caught:
            resolved(item)
        found[item] = caught.value.key
    assert found == WRONG


def test_later_layers_win_and_origins_say_so(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("seed: 3\ntrain:\n  rounds: 7\n")

    config, origins = resolve([from_file(file), from_overrides(["train.rounds=9"])])

    assert (config.seed, config.train.rounds) == (3, 9)
    assert origins["seed"] == f"{file}:1"
    assert origins["train.rounds"] == "command line"
    assert origins["train.local_epochs"] == "default"
    file.write_text("algorithm: fedprox\ntrain:\n  optimizer: adam\n")
    _, origins = resolve([from_file(file), from_overrides(["model=lenet5", "train={rounds: 5}"])])
    assert origins["algorithm.name"] == f"{file}:1"
    assert origins["train.optimizer.name"] == f"{file}:3"
    assert origins["model.name"] == origins["train.rounds"] == "command line"


@pytest.mark.parametrize(
    ("rounds", "every"), [(1, 1), (9, 1), (10, 1), (29, 2), (100, 10), (1000, 10)]
)
def test_models_are_evaluated_at_least_ten_times_by_default(rounds, every):
    keys = [f"train.rounds={rounds}"]

    assert resolve([from_overrides(keys)])[0].evaluation_period == every
    assert rounds // every >= min(10, rounds)
    own = resolve([from_overrides([*keys, "evaluation.every=7"])])[0]
    assert own.evaluation_period == 7


def test_a_home_folder_is_read_as_a_shell_does(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")

    assert str(config_of("data.root=~/data").data.root) == "/home/ada/data"


def test_another_method_drops_the_keys_of_the_one_below():
    below = from_overrides(["algorithm.name=hfcd", "algorithm.tau=0.5"])

    config, _ = resolve([below, Layer({"algorithm": {"name": "fedavg"}})])

    assert config.algorithm.name == "fedavg"


def test_hash_covers_what_changes_results_only():
    base = config_of().hash()

    same = ("output.checkpoint_every=3", "engine.threads=2", "data.root=/x", "evaluation.every=3")
    assert config_of(*same).hash() == base
    stopping = "train.early_stopping.patience=3"
    assert config_of(stopping).hash() != config_of(stopping, "evaluation.every=3").hash()
    for item in (
        "seed=1",
        "train.batchnorm=local",
        "algorithm.tau=0.3",
        "partition.alpha=0.2",
        "train.rounds=4",
        "engine.precision=64-true",
    ):
        assert config_of(item).hash() != base


def test_every_key_of_every_method_and_net_has_a_meaning():
    kinds = {
        **{name: ALGORITHMS[name] for name in ALGORITHMS.load()},
        **{name: MODELS[name] for name in MODELS.load()},
    }

    assert [
        (name, key)
        for name, kind in kinds.items()
        for key, field in kind.Config.model_fields.items()
        if not field.description
    ] == []


@pytest.mark.parametrize(
    ("schedule", "done", "expected"),
    [
        (ScheduleConfig(name="constant"), 7, 1.0),
        (ScheduleConfig(name="cosine", final=0.2), 0, 1.0),
        (ScheduleConfig(name="cosine", final=0.2), 5, 0.6),
        (ScheduleConfig(name="exponential", decay=0.01), 5, 0.1),
        (ScheduleConfig(name="step", decay=0.5, every=3), 7, 0.25),
    ],
)
def test_schedule_is_a_function_of_the_round(schedule, done, expected):
    assert schedule.lr_factor(done, 10) == pytest.approx(expected, rel=1e-12)
