"""The metrics of `evaluation.metrics`, which are functions of the user."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any, Final

import torch
from torch import Tensor

from flbench.config.schema import Config, OwnMetricConfig
from flbench.core import given, imported
from flbench.core.errors import ConfigError
from flbench.core.remembered import changes, remembered
from flbench.metrics import ranking_names
from flbench.metrics.classification import per_client, pooled
from flbench.metrics.confusion import ConfusionCounts
from flbench.metrics.own import SUFFIXES, OwnMetric

OTHERS: Final = (
    *("accuracy_group_mean", "trained_class_share", "train_size", "test_size", "classes"),
    *("moment", "client", "name", "trainings"),
)
"""Further names of metrics and of columns in clients.csv."""


def make(config: Config, classes: int) -> tuple[Config, tuple[OwnMetric, ...]]:
    """Return the metrics, and the configuration with the hashes of their sources.

    Args:
        config: Configuration of the run.
        classes: Number of classes C, to try each metric on a confusion matrix.

    Raises:
        ConfigError: A function is not there, has changed since the run began, or is not a metric.
    """
    cells = torch.arange(classes * classes).reshape(classes, classes)
    confusion = 1 + cells % 3 + 2 * torch.eye(classes, dtype=torch.int64)  # not symmetric
    return _made(config, lambda metric: _try(metric, confusion))


def _try(metric: OwnMetric, confusion: Tensor) -> None:
    """Raise a ConfigError if values of a metric depend on earlier calls, a clock or random numbers.

    Args:
        metric: The metric.
        confusion: Confusion matrix [C, C] to call it with.
    """
    what = f"`evaluation.metrics.{metric.name}`"
    roots = {f"`{metric.path}`": metric.function}
    first = metric(confusion)
    before = remembered(roots)
    second = metric(confusion)
    # A metric of torchmetrics sets itself back, and is judged by its values.
    changed = [] if hasattr(metric.function, "update") else changes(before, remembered(roots))
    if changed:
        raise ConfigError(
            f"{what}: {changed[0]} changes from call to call, so its values would depend on the"
            " number of evaluations and on a resume. Compute the metric from the confusion matrix"
            " alone."
        )
    if first != second and not (isnan(first) and isnan(second)):
        raise ConfigError(
            f"{what}: `{metric.path}` returned {first} and {second} for the same confusion matrix."
            " It may draw from a random generator of its own, read a clock, or remember earlier"
            " calls. Draw from a generator with a seed, such as np.random.default_rng(0), in the"
            " function."
        )


def of_targets(config: Config) -> tuple[Config, tuple[OwnMetric, ...]]:
    """Return the metrics of targets that are not classes, and the configuration with their hashes.

    Args:
        config: Configuration of the run.

    Raises:
        ConfigError: A metric is not there, has changed since the run began, or is not one of
            torchmetrics.
    """
    return _made(config, lambda metric: None)


def _made(
    config: Config, check: Callable[[OwnMetric], object]
) -> tuple[Config, tuple[OwnMetric, ...]]:
    """Return the metrics, each of them checked, and the configuration with their hashes."""
    metrics, written = [], {}
    given_names = tuple(config.evaluation.metrics or {})
    for name, entry in (config.evaluation.metrics or {}).items():
        _check_name(name, given_names)
        metric = OwnMetric(name, _function(name, entry), entry.source)
        check(metric)
        metrics.append(metric)
        written[name] = entry.model_copy(update={"sha256": _sha256(entry, metric)})
    if not metrics:
        return config, ()
    evaluation = config.evaluation.model_copy(update={"metrics": written})
    return config.model_copy(update={"evaluation": evaluation}), tuple(metrics)


def _check_name(name: str, others: Sequence[str]) -> None:
    """Raise a ConfigError if a metric cannot have a name.

    Args:
        name: The name.
        others: Names of all metrics of the user.
    """
    if not name.isidentifier():
        raise ConfigError(
            f"`evaluation.metrics.{name}`: the name of a metric must consist of letters, digits and"
            " underscores, and not begin with a digit."
        )
    empty = ConfusionCounts.empty(clients=1, classes=2)
    taken = {*pooled(empty), *per_client(empty), *ranking_names.NAMES, *OTHERS}
    for own in (name, *(f"{name}{suffix}" for suffix in SUFFIXES)):
        if own in taken:
            raise ConfigError(
                f"`evaluation.metrics.{name}`: flbench has a metric `{own}`. Give yours another"
                " name."
            )
        if own != name and own in others:
            raise ConfigError(
                f"`evaluation.metrics.{own}`: flbench computes `{own}` from `{name}`. Give yours"
                " another name."
            )


def _function(name: str, entry: OwnMetricConfig) -> Callable[..., Any]:
    """Return the function, or metric of torchmetrics, of an entry."""
    where = f"`evaluation.metrics.{name}`"
    found: Any
    if entry.source == given.OBJECT:
        found = (given.find(given.METRICS) or {}).get(name)
        if found is None:
            raise ConfigError(
                f"{where} is an object of Python without an import path, so it must be given"
                f" again: fl.resume(path, evaluation={{'metrics': {{'{name}': ...}}}})."
            )
    elif ":" not in entry.source:
        raise ConfigError(
            f"{where}: `{entry.source}` is not an import path. Write package.module:name, the place"
            " of a function of a confusion matrix or of a metric of torchmetrics."
        )
    else:
        found = imported.find(entry.source)
        if isinstance(found, type):
            found = _instance(found, where)
    if not callable(found):
        raise ConfigError(
            f"{where} must be a function of a confusion matrix or a metric of torchmetrics, got"
            f" {type(found).__name__}."
        )
    function: Callable[..., Any] = found
    return function


def _instance(kind: type, where: str) -> Any:
    """Return an object of a class without arguments."""
    try:
        return kind()
    except Exception as error:
        raise ConfigError(
            f"{where}: {kind.__name__}() raised {type(error).__name__}: {error}. Name a function or"
            " an object, not a class that needs arguments."
        ) from error


def _sha256(entry: OwnMetricConfig, metric: OwnMetric) -> str | None:
    """Return the hash of a metric's source; raise a ConfigError if the entry has another one."""
    if entry.source == given.OBJECT:
        now = imported.text_sha256(metric.function, entry.sha256)
    else:
        now = imported.source_sha256(entry.source, entry.sha256)
    if entry.sha256 not in (None, now):
        raise ConfigError(
            f"SHA-256 of the source of `evaluation.metrics.{metric.name}` was {entry.sha256} and is"
            f" now {now}. Restore the source, or start a new run: the metric's values would not be"
            " of one kind."
        )
    return now
