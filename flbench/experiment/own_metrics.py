"""The metrics of `evaluation.metrics`, which are functions of the user."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from flbench.config.schema import EvaluationConfig, OwnMetricConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.own_names import SUFFIXES
from flbench.core.user_code_errors import calling
from flbench.metrics import names as metric_names
from flbench.metrics.classification import per_client, pooled
from flbench.metrics.confusion import ConfusionCounts
from flbench.metrics.own import OwnMetric
from flbench.results.reading import VALIDATION

OTHERS: Final = (
    *("accuracy_group_mean", "trained_class_share", "train_size", "test_size", "classes"),
    *("moment", "client", "name", "trainings", "steps", "validation_size", "bytes", "seconds"),
)
"""Further names of metrics, and of columns in clients.csv and in reports."""
CURE: Final = (
    "Restore the source, or start a new run: the metric's values would not be of one kind."
)


def make(config: EvaluationConfig, classes: int | None) -> tuple[OwnMetric, ...]:
    """Return the metrics of the user.

    Args:
        config: Section `evaluation`.
        classes: Number of classes C, to try each metric on a confusion matrix; None for targets
            that are not classes.

    Raises:
        ConfigError: A metric is not there, has changed since the run began, or cannot be computed
            from a confusion matrix.
    """
    metrics = []
    entries = config.metrics or {}
    for name, entry in entries.items():
        _check_name(name, tuple(entries))
        metric = OwnMetric(name, _function(name, entry), entry.source)
        whose = f"`evaluation.metrics.{name}`"
        if classes is not None:
            _try(metric, whose, classes)
        now = source_hash.checked(metric.function, entry.source, entry.sha256, whose, CURE)
        metrics.append(replace(metric, sha256=now))
    return tuple(metrics)


def _try(metric: OwnMetric, whose: str, classes: int) -> None:
    """Raise a ConfigError if a metric fails, or if two calls with equal counts differ."""
    cells = torch.arange(classes * classes).reshape(classes, classes)
    confusion = 1 + cells % 3 + 2 * torch.eye(classes, dtype=torch.int64)  # it is not symmetric
    first, _, second = (repr(metric(one)) for one in (confusion, confusion.flip(0), confusion))
    if first != second:
        raise ConfigError(
            f"{whose}: `{metric.path}` returned {first} and {second} for the same confusion matrix."
            " Draw from a generator with a seed, such as np.random.default_rng(0), and remember"
            " nothing of earlier calls."
        )
    if metric.needs_scores(classes):
        raise ConfigError(
            f"{whose}: {type(metric.function).__name__} needs scores, and metrics get predicted"
            " classes. Leave it out: flbench computes `auroc` and `average_precision` of two"
            " classes itself, and metrics of probabilities with evaluation.probabilities=true."
        )


def _check_name(name: str, others: Sequence[str]) -> None:
    """Raise a ConfigError if a metric cannot have a name, beside those of all own metrics."""
    empty = ConfusionCounts.empty(clients=1, classes=2)
    of_clients = (*per_client(empty), *metric_names.RANKING)
    taken = {*pooled(empty), *of_clients, *OTHERS, *(f"{VALIDATION}{key}" for key in of_clients)}
    taken |= set(others) - {name}
    names = (name, f"{VALIDATION}{name}", *(f"{name}{suffix}" for suffix in SUFFIXES))
    wrong = [one for one in names if one in taken or not one.isidentifier()]
    if wrong:
        raise ConfigError(
            f"`evaluation.metrics.{name}` has values under the names {', '.join(names)}, and"
            f" `{wrong[0]}` is that of another metric or column, or not one of letters, digits and"
            " underscores. Give the metric another name."
        )


def _function(name: str, entry: OwnMetricConfig) -> Callable[..., Any]:
    """Return the function, or metric of torchmetrics, of an entry."""
    where = f"`evaluation.metrics.{name}`"
    if entry.source != parts.OBJECT and ":" not in entry.source:
        raise ConfigError(
            f"{where}: `{entry.source}` is not an import path. Write package.module:name, the place"
            " of a function of a confusion matrix or of a metric of torchmetrics."
        )
    again = f"evaluation={{'metrics': {{'{name}': ...}}}}"
    found = parts.part(entry.source, parts.METRICS, where, again, key=name)
    if entry.source != parts.OBJECT and isinstance(found, type):
        with calling(f"{where}: {found.__name__}()", "Name an object, not a class with arguments."):
            found = found()
    if not callable(found):
        raise ConfigError(
            f"{where} must be a function of a confusion matrix or a metric of torchmetrics, got"
            f" {type(found).__name__}."
        )
    function: Callable[..., Any] = found
    return function
