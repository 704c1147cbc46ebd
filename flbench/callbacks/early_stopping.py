"""Stops a run when a metric does not improve any more."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from flbench.callbacks.base import Callback
from flbench.callbacks.run_view import RunView
from flbench.config.schema import Config, EarlyStoppingConfig
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.own_names import SUFFIXES
from flbench.metrics import names as metric_names
from flbench.results.summary import SHARES

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
        if not (isinstance(patience, int) and patience >= 1 and min_delta >= 0):
            raise ConfigError(
                "EarlyStopping: `patience` must be a whole number, at least 1, and `min_delta` at"
                f" least 0, got {patience!r} and {min_delta!r}."
            )
        if mode not in ("max", "min", None):
            raise ConfigError(f"EarlyStopping: `mode` must be max or min, got {mode!r}.")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._mode = mode
        self._forget()

    def requires(self, config: Config, parts: Sequence[str]) -> Sequence[str]:
        self._forget()  # the object may have served another run before
        self._mode = self.mode or self._known_mode()
        if self._mode is not None:
            return ()
        hint = did_you_mean(self.metric.rpartition("/")[2], LESS_IS_BETTER | MORE_IS_BETTER)
        return (
            "EarlyStopping: it is not known whether larger values of the metric"
            f" `{self.metric}` are better.{hint} Set mode to max or min.",
        )

    def _known_mode(self) -> Literal["max", "min"] | None:
        """Return which values of the metric are better, as far as its name or the user says it."""
        split, name = self.metric.partition("/")[0], self.metric.rpartition("/")[2]
        for one in self.own_metrics:
            if name in {f"{one.name}{end}" for end in ("", *SUFFIXES)}:
                return one.direction
        if name in LESS_IS_BETTER or (split == "log" and name.endswith("loss")):
            return "min"
        return "max" if name in MORE_IS_BETTER else None

    def _forget(self) -> None:
        """Forget the values of the metric so far."""
        self._best: float | None = None
        self._best_round = 0
        self._waited = 0  # values since the best one

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
        return {"best": self._best, "best_round": self._best_round, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_round = state["best"], state["best_round"]
        self._waited = state["waited"]

    def _watch(self, run: RunView, metrics: Mapping[str, float], unit: str) -> None:
        """Compare a new value of the metric, if there is one, with the best so far."""
        value = metrics.get(self.metric)
        if value is None:
            return
        if self._is_better(value):
            self._best, self._best_round, self._waited = value, run.round, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            change = f" by more than {self.min_delta:g}" if self.min_delta else ""
            best = (
                "it has never been a number"
                if self._best is None
                else f"best: {self._best:.4f} after round {self._best_round}"
            )
            run.stop(f"{self.metric} has not improved{change} in {self._waited} {unit} ({best})")

    def _is_better(self, value: float) -> bool:
        if self._best is None:
            return value == value  # not NaN
        if self._mode == "max":
            return value > self._best + self.min_delta
        return value < self._best - self.min_delta
