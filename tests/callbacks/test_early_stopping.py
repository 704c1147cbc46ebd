"""EarlyStopping: a slow oracle, exact resume, the configuration's key, and what is refused."""

import math
from types import SimpleNamespace

import pytest
from torchmetrics import MeanSquaredError

from flbench.callbacks import CallbackList
from flbench.callbacks.early_stopping import EarlyStopping
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError
from flbench.experiment import lifecycle
from flbench.metrics.own import OwnMetric
from flbench.results import metrics_file
from tests.api.own_parts import error_rate
from tests.callbacks.support import CrashAfter, CrashError, config, only_run, run_with
from tests.support import reproducible, summary_of

LONG = ("train.rounds=14", "evaluation.every=1", "train.optimizer.lr=1", "train.participation=0.4")


def stops_at(values, patience, min_delta, mode):
    """The round at which a run stops, read from the values of all its rounds; None for never."""
    sign = 1 if mode == "max" else -1
    for last in range(1, len(values) + 1):
        best = 0
        for k in range(1, last):
            if sign * values[k] > sign * values[best] + min_delta:
                best = k
        if last - 1 - best >= patience:
            return last
    return None


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return run_with(tmp_path_factory.mktemp("long"), [], *LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "patience", "min_delta", "mode"),
    [
        ("validation/personal/accuracy", 1, 0.0, "max"),
        ("validation/personal/worst10_accuracy", 2, 0.01, "max"),
        ("train/loss", 2, 0.3, "min"),
    ],
)
def test_it_stops_where_the_metrics_of_an_unstopped_run_say(
    tmp_path, long_run, metric, patience, min_delta, mode
):
    path, _ = long_run
    rows = metrics_file.read(path / "metrics.csv")
    values = [row.value for row in rows if row.full_name == metric]
    assert len(values) == 14
    expected = stops_at(values, patience, min_delta, mode)
    assert expected is not None
    callback = EarlyStopping(metric, patience=patience, min_delta=min_delta, mode=mode)
    _, summary = run_with(tmp_path, [callback], *LONG)

    if expected == 14:
        assert "stopped" not in summary
    else:
        assert summary["stopped"]["round"] == summary["last"]["round"] == expected
        assert metric in summary["stopped"]["reason"]
        before = [row for row in rows if row.round <= expected and row.split == "validation"]
        assert (
            summary["best"]["round"]
            == max(
                (row for row in before if row.full_name == "validation/personal/accuracy"),
                key=lambda row: (row.value, -row.round),
            ).round
        )


STILL = ("train.rounds=30", "evaluation.every=1", "train.optimizer.lr=0")
"""With a learning rate of zero the accuracy stays, and a forgotten count would stop later."""


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """The folder of a run that a callback has stopped."""
    return run_with(tmp_path_factory.mktemp("still"), [EarlyStopping(patience=6)], *STILL)[0]


@pytest.mark.slow
@pytest.mark.parametrize("crash", [2, 6])
def test_it_stops_at_the_same_round_after_a_crash_and_resume(tmp_path, still, crash):
    with pytest.raises(CrashError):
        run_with(tmp_path, [EarlyStopping(patience=6), CrashAfter(crash)], *STILL)
    folder = only_run(tmp_path)
    lifecycle.resume(folder, Layer({}), [EarlyStopping(patience=6)])

    assert summary_of(still)["stopped"]["round"] == 7
    assert reproducible(summary_of(folder)) == reproducible(summary_of(still))
    assert (folder / "metrics.csv").read_bytes() == (still / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_key_of_the_configuration_does_what_the_callback_does(tmp_path, still):
    with pytest.raises(CrashError):
        run_with(tmp_path, [CrashAfter(4)], *STILL, "train.early_stopping.patience=6")
    folder = only_run(tmp_path)
    lifecycle.resume(folder, Layer({}))
    configured, asked = summary_of(folder), summary_of(still)

    assert configured.pop("config_hash") != asked.pop("config_hash")
    assert reproducible(configured) == reproducible(asked)
    with pytest.raises(ConfigError, match=r"train\.early_stopping\.patience"):
        lifecycle.resume(folder, Layer({"train": {"early_stopping": {"patience": 9}}}))


@pytest.mark.slow
def test_an_object_can_serve_several_runs(tmp_path):
    """It begins each run with no memory of the run before."""
    callback = EarlyStopping("train/loss", patience=2, mode="max")

    runs = [run_with(tmp_path / name, [callback], "train.rounds=5")[1] for name in ("one", "two")]

    assert runs[0]["stopped"]["round"] < 5
    assert reproducible(runs[0]) == reproducible(runs[1])


def kappa(confusion):
    """Not called."""


class Unknown:
    """A metric like those of torchmetrics that say nothing."""

    higher_is_better = None


OWN = {"rate": error_rate, "kappa": kappa, "mse": MeanSquaredError(), "unknown": Unknown()}


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("validation/personal/auroc_macro_mean", "max"),
        ("validation/personal/nll_mean", "min"),
        ("train/loss", "min"),
        ("log/val_loss", "min"),
        ("log/accuracy", "max"),
        ("validation/personal/rate_worst10", "min"),
        ("validation/personal/kappa", "max"),
        ("validation/personal/mse_mean", "min"),
        ("validation/personal/unknown", None),
        ("validation/personal/client_std", None),
        ("log/norm", None),
    ],
)
def test_the_mode_follows_the_metric(metric, mode):
    metrics = [OwnMetric(name, function, "object") for name, function in OWN.items()]
    given, _ = config("runs", "evaluation.probabilities=true")

    def better(**asked):
        """Which of two values after 0.5 is an improvement."""
        callback, found = EarlyStopping(metric, **asked), set()
        CallbackList([callback]).prepare(given, metrics)
        for value in (0.4, 0.6):
            callback.load_state_dict({"best": 0.5, "best_round": 1, "waited": 0})
            callback.on_round_end(SimpleNamespace(round=2), {metric: value})
            found |= set() if callback.state_dict()["waited"] else {value}
        return found

    assert better(mode="max") == {0.6}
    assert better(mode="min") == {0.4}
    if mode is None:
        with pytest.raises(ConfigError, match=metric):
            better()
    else:
        assert better() == better(mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["validation/personal/acuracy", "common/gm/accuracy"])
def test_metric_that_the_first_evaluation_lacks_is_refused_then(tmp_path, metric):
    with pytest.raises(ConfigError, match=f"`{metric}`"):
        run_with(tmp_path, [EarlyStopping(metric, mode="max")], "train.rounds=6")


@pytest.mark.parametrize(
    ("key", "value"), [("patience", 0), ("min_delta", -0.1), ("min_delta", math.nan), ("mode", "x")]
)
def test_arguments_out_of_range_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key}`"):
        EarlyStopping(**{key: value})


def test_the_callback_of_the_configuration_comes_before_those_of_the_user():
    told = CallbackList([EarlyStopping(patience=2)])
    assert list(told.state_dict()) == ["EarlyStopping"]

    told.prepare(config("runs", "train.early_stopping.patience=3")[0])
    told.load_state_dict({"EarlyStopping#2": {"best": 0.5, "best_round": 4, "waited": 1}})

    assert told.state_dict()["EarlyStopping"]["best_round"] == 0
    assert told.state_dict()["EarlyStopping#2"]["best_round"] == 4
