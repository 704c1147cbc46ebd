"""EarlyStopping: a slow oracle, exact resume, the configuration's key, and what is refused."""

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
        ("validation/personal/accuracy", 3, 0.05, "max"),
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
        assert summary["stopped"]["reason"].startswith(f"{metric} has not improved")
        before = [row for row in rows if row.round <= expected and row.split == "validation"]
        assert (
            summary["best"]["round"]
            == max(
                (row for row in before if row.full_name == "validation/personal/accuracy"),
                key=lambda row: (row.value, -row.round),
            ).round
        )


@pytest.mark.slow
@pytest.mark.parametrize("crash", [2, 5, 6])
def test_it_stops_at_the_same_round_after_a_crash_and_resume(tmp_path, crash):
    """With a learning rate of zero the accuracy stays, and a forgotten count would stop later."""
    keys = ("train.rounds=30", "evaluation.every=1", "train.optimizer.lr=0")
    path, summary = run_with(tmp_path / "a", [EarlyStopping(patience=6)], *keys)
    assert summary["stopped"]["round"] == 7
    with pytest.raises(CrashError):
        run_with(tmp_path / "b", [EarlyStopping(patience=6), CrashAfter(crash)], *keys)
    folder = only_run(tmp_path / "b")
    lifecycle.resume(folder, Layer({}), [EarlyStopping(patience=6)])

    assert reproducible(summary_of(folder)) == reproducible(summary)
    assert (folder / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_key_of_the_configuration_does_what_the_callback_does(tmp_path):
    keys = ("train.rounds=30", "evaluation.every=1", "train.optimizer.lr=0")
    _, asked = run_with(tmp_path / "a", [EarlyStopping(patience=4)], *keys)
    with pytest.raises(CrashError):
        run_with(tmp_path / "b", [CrashAfter(4)], *keys, "train.early_stopping.patience=4")
    folder = only_run(tmp_path / "b")
    lifecycle.resume(folder, Layer({}))
    configured = summary_of(folder)

    assert configured.pop("config_hash") != asked.pop("config_hash")
    assert reproducible(configured) == reproducible(asked)
    assert configured["stopped"]["round"] == 5
    with pytest.raises(ConfigError, match=r"`train.early_stopping.patience` was 4"):
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


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("validation/personal/accuracy", "max"),
        ("validation/personal/auroc_macro_mean", "max"),
        ("validation/personal/ece", "min"),
        ("validation/personal/nll_mean", "min"),
        ("train/loss", "min"),
        ("log/val_loss", "min"),
        ("log/accuracy", "max"),
        ("validation/personal/rate_worst10", "min"),
        ("validation/personal/kappa", "max"),
        ("validation/personal/mse_mean", "min"),
        ("validation/personal/unknown", None),
        ("validation/personal/client_std", None),
        ("server/clusters", None),
        ("log/norm", None),
    ],
)
def test_the_mode_follows_the_metric(metric, mode):
    functions = {
        "rate": error_rate,
        "kappa": kappa,
        "mse": MeanSquaredError(),
        "unknown": Unknown(),
    }
    metrics = [OwnMetric(name, function, "object") for name, function in functions.items()]
    given, _ = config("runs", "evaluation.probabilities=true")

    def told(callback):
        CallbackList([callback]).prepare(given, ["validation", "test"], metrics)
        better = set()
        for value in (0.4, 0.6):
            callback.load_state_dict({"best": 0.5, "best_round": 1, "waited": 0})
            callback.on_round_end(SimpleNamespace(round=2), {metric: value})
            if not callback.state_dict()["waited"]:
                better.add(value)
        return better

    for asked, better in (("max", {0.6}), ("min", {0.4})):
        assert told(EarlyStopping(metric, mode=asked)) == better
        if mode == asked:
            assert told(EarlyStopping(metric)) == better
    if mode is None:
        with pytest.raises(ConfigError, match="max or min"):
            told(EarlyStopping(metric))


@pytest.mark.slow
def test_a_run_that_watches_its_loss_trains_as_long_as_the_loss_falls(tmp_path):
    keys = ("train.early_stopping.metric=train/loss", "train.early_stopping.patience=2")
    path, summary = run_with(tmp_path, [], "train.rounds=6", "train.optimizer.lr=0.01", *keys)

    losses = [row.value for row in metrics_file.read(path / "metrics.csv") if row.metric == "loss"]
    assert losses == sorted(losses, reverse=True)
    assert "stopped" not in summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("validation/personal/acuracy", "Did you mean `validation/personal/accuracy`"),
        ("common/gm/accuracy", "needs evaluation.common.every"),
        ("server/xyz", "Metrics there: "),
        ("accuracy", "Metrics there: "),
        ("validation/personal/nll", "evaluation.probabilities=true"),
    ],
)
def test_metric_that_the_first_evaluation_lacks_is_refused_then(tmp_path, metric, message):
    with pytest.raises(ConfigError, match=rf"was not computed in the first 2 rounds.*{message}"):
        run_with(tmp_path, [EarlyStopping(metric, mode="max")], "train.rounds=6")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "patience` must be"),
        ({"patience": 2.5}, "patience` must be"),
        ({"min_delta": -0.1}, "min_delta` must be"),
        ({"min_delta": float("nan")}, "min_delta` must be"),
        ({"mode": "most"}, "mode` must be 'max' or 'min', got 'most'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        EarlyStopping(**arguments)


def test_the_callback_of_the_configuration_comes_before_those_of_the_user():
    told = CallbackList([EarlyStopping(patience=2)])
    assert list(told.state_dict()) == ["EarlyStopping"]

    told.prepare(config("runs", "train.early_stopping.patience=3")[0], ["validation", "test"])
    told.load_state_dict({"EarlyStopping#2": {"best": 0.5, "best_round": 4, "waited": 1}})

    assert told.state_dict()["EarlyStopping"]["best_round"] == 0
    assert told.state_dict()["EarlyStopping#2"]["best_round"] == 4
