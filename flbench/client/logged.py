"""What clients log while they train a LightningModule of the user."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from flbench.core.types import Tree

LOGGED: Final = "log."
"""Prefix of the names under which an engine returns what was logged, in `Results.observed`."""


class Log:
    """What a client's module has logged in a round, by `self.log`."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}
        self._weights: dict[str, list[float]] = {}
        self._reduce: dict[str, Callable[[Tensor], Tensor]] = {}

    def add(
        self,
        name: str,
        value: Tensor,
        reduce: Callable[[Tensor], Tensor],
        weight: float = 1.0,
    ) -> None:
        """Add the value of one step.

        Args:
            name: Name of the value.
            value: The value, 0-dim float64.
            reduce: How the values [n] of n steps become one.
            weight: Weight of the value in a mean, such as the number of samples, > 0.
        """
        self._values.setdefault(name, []).append(value)
        self._weights.setdefault(name, []).append(weight)
        self._reduce[name] = reduce

    def names(self) -> set[str]:
        """Return the names of the values that were logged."""
        return set(self._values)

    def tree(self) -> Tree:
        """Return (value, 1) [2] float64 for each name, reduced over the steps.

        A client that has not logged a name that others have gets (0, 0) from the engine.
        """
        return {
            LOGGED + name: torch.tensor([self._reduced(name), 1.0], dtype=torch.float64)
            for name in self._values
        }

    def _reduced(self, name: str) -> float:
        """Return the value of a name, reduced over the steps."""
        values, weights, reduce = self._values[name], self._weights[name], self._reduce[name]
        stacked = torch.stack(values)
        if reduce is torch.mean and len(set(weights)) > 1:
            each = torch.tensor(weights, dtype=stacked.dtype, device=stacked.device)
            return float((stacked * each).sum() / each.sum())
        return float(reduce(stacked))
