"""Stops a run when a metric does not improve any more."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from flbench.callbacks.base import Callback
from flbench.callbacks.run_view import RunView
from flbench.config.resolve import resolve
from flbench.config.schema import EarlyStoppingConfig
from flbench.config.sources import from_values
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.own_names import SUFFIXES
from flbench.metrics import names as metric_names
from flbench.results.summary import SHARES

if TYPE_CHECKING:
    from flbench.metrics.own import OwnMetric

DEFAULT_METRIC: Final = EarlyStoppingConfig().metric
LESS_IS_BETTER: Final = frozenset({"loss", *metric_names.LESS_IS_BETTER})
MORE_IS_BETTER: Final = (
    SHARES
    | {
        "accuracy_group_mean",
        *metric_names.RANKING_WITH_MEANS,
        *metric_names.PROBABILITY_WITH_MEANS,
    }
) - LESS_IS_BETTER


class EarlyStopping(Callback):
    """Stops a run after some evaluations without an improvement of a metric.

    The run ends in an orderly way: see `RunView.stop`. Each value of the metric is compared with
    the best one so far. Values come from evaluations (`evaluation.every`), and those of splits
    `train`, `log` and `server` from rounds. NaN is never an improvement.

    Args:
        metric: Name of the metric as `split/protocol/metric` of metrics.csv, such as
            `validation/personal/accuracy`, or `train/loss` where there is no protocol.
        patience: Number of values without an improvement after which the run stops, at least 1.
        min_delta: An improvement is a change by more than this, at least 0.
        mode: Whether a larger value (`max`) or a smaller one (`min`) is better; None for what is
            known of the metric: accuracies and losses of flbench, and metrics of your own, say it.

    Raises:
        ConfigError: An argument is out of its range.

    >>> stop = EarlyStopping(patience=5)
    >>> EarlyStopping("train/loss", patience=3).metric
    'train/loss'
    """

    def __init__(
        self,
        metric: str = DEFAULT_METRIC,
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Literal["max", "min"] | None = None,
    ) -> None:
        given = {"metric": metric, "patience": patience, "min_delta": min_delta, "mode": mode}
        resolve([from_values({"train.early_stopping": given}, "EarlyStopping")])
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._own_metrics: tuple[OwnMetric, ...] = ()
        self._forget()

    def prepare(self, metrics: tuple["OwnMetric", ...]) -> None:
        self._forget()  # the object may have served another run before
        self._own_metrics = metrics
        if self._direction() is None:
            hint = did_you_mean(self.metric.rpartition("/")[2], LESS_IS_BETTER | MORE_IS_BETTER)
            raise ConfigError(
                "EarlyStopping: it is not known whether larger values of the metric"
                f" `{self.metric}` are better.{hint} Set mode to max or min."
            )

    def _direction(self) -> Literal["max", "min"] | None:
        """Return which values of the metric are better, as far as its name or the user says it."""
        if self.mode is not None:
            return self.mode
        split, name = self.metric.partition("/")[0], self.metric.rpartition("/")[2]
        for one in self._own_metrics:
            if name in {f"{one.name}{end}" for end in ("", *SUFFIXES)}:
                return one.direction
        if name in LESS_IS_BETTER or (split == "log" and name.endswith("loss")):
            return "min"
        return "max" if name in MORE_IS_BETTER else None

    def _forget(self) -> None:
        """Forget the values of the metric so far."""
        self._state: dict[str, Any] = {"best": None, "best_round": 0, "waited": 0}

    def on_run_start(self, run: RunView) -> None:
        split = self.metric.partition("/")[0]
        if split in ("test", "common"):
            run.note(
                f"EarlyStopping watches {self.metric}: a run that stops by test samples reports"
                " test metrics that are too good. Watch a metric of the validation part."
            )

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._watch(run, metrics, "rounds")

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._watch(run, metrics, "evaluations")
        if self.metric not in run.metrics:
            raise ConfigError(
                f"EarlyStopping: the metric `{self.metric}` was not computed in the first"
                f" {run.round} rounds, so it would never stop the run."
                f"{did_you_mean(self.metric, run.metrics)} Metrics there:"
                f" {', '.join(run.metrics)}. The common test set needs evaluation.common.every, and"
                " metrics of probabilities need evaluation.probabilities=true."
            )

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = dict(state)

    def _watch(self, run: RunView, metrics: Mapping[str, float], unit: str) -> None:
        """Compare a new value of the metric, if there is one, with the best so far."""
        value = metrics.get(self.metric)
        if value is None:
            return
        if self._is_better(value):
            self._state = {"best": value, "best_round": run.round, "waited": 0}
            return
        self._state["waited"] += 1
        if self._state["waited"] >= self.patience:
            best = "it has never been a number"
            if self._state["best"] is not None:
                best = f"best: {self._state['best']:.4f} after round {self._state['best_round']}"
            run.stop(
                f"{self.metric} has not improved by more than {self.min_delta:g} in"
                f" {self._state['waited']} {unit} ({best})"
            )

    def _is_better(self, value: float) -> bool:
        best = self._state["best"]
        if best is None:
            return value == value  # not NaN
        gain: float = value - best if self._direction() == "max" else best - value
        return gain > self.min_delta
