"""Methods as trainables of a Tuner of one's own, and search spaces as those of Ray Tune."""

import linecache
import os
import pickle
import signal
import threading
from pathlib import Path

import cloudpickle
import pytest
import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.variant_generator import generate_variants
from safetensors.torch import load_file

import flbench as fl
from flbench.core import parts, source_hash
from flbench.core.tree import digest
from flbench.tuning import library
from flbench.workers.shipping import pack

RATE, MU = "train.optimizer.lr", "algorithm.mu"
SETTING = {
    "partition": fl.Dirichlet(alpha=0.5, clients=4, samples=400),
    "train": {"rounds": 3, "local_epochs": 1},
    "evaluation": {"every": 1},
}


class Killing(tune.Callback):
    """Kills the worker of a trial after its second checkpoint, once."""

    has_killed = False  # of the class: a restored Tuner has a copy of its callbacks

    def on_trial_save(self, iteration, trials, trial, **info):
        if trial.last_result["training_iteration"] == 2 and not Killing.has_killed:
            Killing.has_killed = True
            os.kill(trial.last_result["pid"], signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "3600")  # no copy while logs are restored
        ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="error")
        yield
        ray.shutdown()


def tuner(folder, trainable, space, *, callbacks=()):
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="val_accuracy", mode="max"),
        run_config=tune.RunConfig(
            name="own", storage_path=str(folder), verbose=0, callbacks=list(callbacks)
        ),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run with the keys of a trial, without Ray Tune."""
    return fl.run(
        "fedprox",
        **SETTING,
        **{RATE: 0.1, MU: 0.5},
        engine={"threads": 1},
        output={"dir": tmp_path_factory.mktemp("alone")},
        progress=False,
    )


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_trial_that_is_killed_and_restored_ends_as_a_run(cluster, alone, tmp_path):
    trainable = fl.tuning.trainable("fedprox", **SETTING)
    killed = tuner(tmp_path, trainable, {RATE: 0.1, MU: 0.5}, callbacks=[Killing()])
    assert len(killed.fit().errors) == 1
    grid = tune.Tuner.restore(str(tmp_path / "own"), trainable, resume_errored=True).fit()

    [good] = grid
    assert good.error is None
    assert good.metrics["iterations_since_restore"] < 3
    for kind, amount in alone.summary["communication"].items():
        assert good.metrics[kind] == amount
    curve = good.metrics_dataframe
    assert curve["training_iteration"].tolist() == curve["round"].tolist() == [1, 2, 3]
    lines = alone.metrics.query("split == 'validation' and protocol == 'personal'")
    by_round = lines.query("metric == 'accuracy'")["value"].tolist()
    assert curve["val_accuracy"].tolist() == by_round
    frame = grid.get_dataframe()
    assert {f"config/{RATE}", f"config/{MU}", "trial_id", "time_total_s"} <= set(frame.columns)
    with good.checkpoint.as_directory() as folder:
        saved = digest([load_file(Path(folder) / "checkpoints" / "last.safetensors")])
    assert saved == digest([load_file(alone.path / "checkpoints" / "last.safetensors")])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_wrong_keys_are_refused_before_a_trial_starts(cluster, tmp_path):
    trainable = fl.tuning.trainable("fedprox", **SETTING)
    for key in ("train.optimizer.lrr", "partition.alpha", "algorithm.name"):
        with pytest.raises(fl.ConfigError, match=f"`{key}`"):
            tuner(tmp_path / key, trainable, {key: tune.choice([1])}).fit()

    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"train": {"round": 3}}, "train.round"),
        ({"partition": {"split": [0.8, 0.0, 0.2]}}, "partition.split"),
        ({"train": {"early_stopping": {"patience": 2}}}, "train.early_stopping.patience"),
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"gpus_per_trial": 0.5, "engine": {"device": "cpu"}}, "engine.device=cpu"),
    ],
)
def test_wrong_arguments_are_refused(keys, named):
    with pytest.raises(fl.UserError, match=named):
        fl.tuning.trainable("fedprox", **keys)


def test_object_that_cannot_be_pickled_is_refused():
    with pytest.raises(fl.ConfigError, match="`model`"):
        pack({"model": threading.Lock()})
    lock = threading.Lock()
    with pytest.raises(fl.ConfigError, match=r"`train\.terms`"):
        pack({"train.terms": {"object:held": lambda context: lock}})


def test_hash_of_a_notebooks_function_travels_with_it(monkeypatch):
    section = "train.terms"
    cell = "def first(confusion):\n    return float(confusion[0, 0])\n"
    lines = cell.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(cell), None, lines, "<cell 1>"))
    names = {"__name__": "__main__"}
    exec(compile(cell, "<cell 1>", "exec"), names)
    sha256 = source_hash.of_object(names["first"])
    assert sha256 is not None
    sent = cloudpickle.dumps(pack({section: {"first": names["first"]}}))

    monkeypatch.delitem(linecache.cache, "<cell 1>")  # another process has not run the cell
    parcel = pickle.loads(sent)
    with parcel.opened():
        received = parts.given(section)["first"]
        assert source_hash.of_object(received) == sha256
    assert source_hash.of_object(received) != sha256


@pytest.mark.parametrize("method", ["cfl", "dispfl"])
def test_space_draws_values_of_the_parameters(method):
    mine = library.built_in(method, rounds=20)
    theirs = fl.tuning.space(method, rounds=20)

    assert list(theirs) == [path for path, one in mine.parameters.items() if not one.when]
    samples = [sampled(theirs, seed) for seed in range(40)]
    for path in theirs:
        values = [config[path] for config in samples]
        assert all(map(mine.parameters[path].holds, values)), path
        assert len(set(values)) > 1, path


def sampled(space, seed):
    """Return a config that Ray Tune draws from a space."""
    return next(config for _, config in generate_variants(space, random_state=seed))


def test_space_for_optuna_has_conditions():
    space, mine = fl.tuning.space("dispfl", searcher="optuna"), library.built_in("dispfl", rounds=9)
    search = OptunaSearch(space=space, metric="val_accuracy", mode="max", seed=0)
    drawn = [search.suggest(f"trial{k}") for k in range(20)]

    for config in drawn:
        active = {path for path, one in mine.parameters.items() if one.is_active(config)}
        assert set(config) == active
        assert all(mine.parameters[path].holds(value) for path, value in config.items())
    assert len({len(config) for config in drawn}) == 2
