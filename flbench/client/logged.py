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
        self._reduce: dict[str, Callable[[Tensor], Tensor]] = {}

    def add(self, name: str, value: Tensor, reduce: Callable[[Tensor], Tensor]) -> None:
        """Add the value of one step, 0-dim."""
        self._values.setdefault(name, []).append(value)
        self._reduce[name] = reduce

    def tree(self) -> Tree:
        """Return (value, 1) [2] float64 for each name, reduced over the steps.

        A client that has not logged a name that others have gets (0, 0) from the engine.
        """
        return {
            LOGGED + name: torch.tensor(
                [float(self._reduce[name](torch.stack(values))), 1.0], dtype=torch.float64
            )
            for name, values in self._values.items()
        }
