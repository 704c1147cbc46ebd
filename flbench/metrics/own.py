"""Metrics of the user's own: functions of a confusion matrix, or metrics of torchmetrics."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from flbench.core.errors import ConfigError
from flbench.core.rng import seeded
from flbench.core.user_code_errors import calling


@dataclass(frozen=True, eq=False)  # metrics of torchmetrics have no constant hash
class OwnMetric:
    """A metric of predicted classes.

    Attributes:
        name: Name of the metric in tables.
        function: Maps a confusion matrix [C, C] int64, whose rows are true classes, to a number, or
            to None where it has no value; or a metric of torchmetrics, which gets the predicted
            and the true classes of all samples that the matrix counts. An attribute
            `higher_is_better` that is False makes small values good.
        path: Import path of the function, or `object`.
        sha256: SHA-256 (hex) of the function's source; None if it is not known.
        mode: Whether larger or smaller values are better, if the configuration says it.
    """

    name: str
    function: Callable[..., Any]
    path: str
    sha256: str | None = None
    mode: Literal["max", "min"] | None = None

    def __call__(self, confusion: Tensor) -> float:
        """Return the metric of a confusion matrix [C, C]; NaN for a matrix without samples.

        Raises:
            ConfigError: The function raised an exception, or returned something else than a finite
                number or None.
        """
        if not bool(confusion.sum()):
            return nan
        what = f"`evaluation.metrics.{self.name}`: `{self.path}`"
        cure = (
            "A metric gets a confusion matrix; metrics that need scores cannot be computed from it."
        )
        with calling(what, cure), seeded(0):
            found = self._value(confusion.to(torch.int64))
        if isinstance(found, Tensor) and found.numel() == 1:
            found = found.item()
        if found is None:
            return nan
        if not isinstance(found, Real) or abs(float(found)) == float("inf"):
            raise ConfigError(
                f"`evaluation.metrics.{self.name}`: `{self.path}` must return a finite number, or"
                f" None where there is no value; it returned {found!r}."
            )
        return float(found)

    def summary(self, value: float, clients: Tensor) -> dict[str, float | None]:
        """Return `NAME`, `NAME_mean` and `NAME_worst10`; None for a value that does not exist.

        They are the value over all samples, the mean of the clients' values [N], and that of the
        worst tenth of them, at least of one. NaN stands for no value.
        """
        known = clients[~clients.isnan()].sort(descending=self.is_loss).values
        worst = known[: -(-len(known) // 10)]
        values = {"": value, "_mean": _mean(known), "_worst10": _mean(worst)}
        return {
            f"{self.name}{suffix}": None if isnan(value) else value
            for suffix, value in values.items()
        }

    @property
    def direction(self) -> Literal["max", "min"] | None:
        """Whether larger or smaller values are better; None if `higher_is_better` is None.

        Larger values of a function without this attribute are better.
        """
        if self.mode is not None:
            return self.mode
        is_larger = getattr(self.function, "higher_is_better", True)
        return None if is_larger is None else "max" if is_larger else "min"

    @property
    def is_loss(self) -> bool:
        """Whether smaller values are better."""
        return self.direction == "min"

    def _value(self, confusion: Tensor) -> Any:
        """Return what the function returns for a confusion matrix."""
        if not hasattr(self.function, "update"):
            return self.function(confusion.clone())
        counts, classes = confusion.flatten(), len(confusion)
        cells = torch.arange(classes * classes).repeat_interleave(counts)  # one entry per sample
        return self._of_samples(cells % classes, cells // classes)

    def _of_samples(self, predicted: Tensor, true: Tensor) -> Any:
        """Return what a metric of torchmetrics returns for samples [n]."""
        metric: Any = self.function
        metric.reset()
        metric.update(predicted, true)
        value = metric.compute()
        metric.reset()
        return value

    def needs_scores(self, classes: int) -> bool:
        """Return whether a metric of torchmetrics has other values for scores than for classes."""
        kinds = (kind.__module__ for kind in type(self.function).__mro__)
        if not any(kind.startswith("torchmetrics.classification") for kind in kinds):
            return False
        true = torch.arange(16 * classes) % classes  # [n]
        random = torch.rand(len(true), classes, generator=torch.Generator().manual_seed(0))
        scores = random / random.sum(dim=1, keepdim=True)  # [n, C]
        expected = self._of_samples(scores.argmax(dim=1), true)
        for given in (scores, scores[:, 1]):
            with suppress(Exception):  # a metric of two classes takes one of both
                found = self._of_samples(given, true)
                return not torch.allclose(found, expected, equal_nan=True)
        return False


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else nan
