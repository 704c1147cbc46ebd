"""Reduction of what a Statistic returns, batch after batch, to one result."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from flbench.client.program import Statistic
from flbench.core.types import Context, Tree

REDUCTIONS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""The function of two batches' tensors for each value of `Statistic.reduce` but `rows`."""


class Recording:
    """The running reduction of one Statistic over the batches of K clients.

    An engine that trains one client after the other has K = 1, and calls `see` and `finish`.

    Args:
        statistic: The Statistic.
    """

    def __init__(self, statistic: Statistic) -> None:
        self.statistic = statistic
        self.reduced: Tree = {}  # [K, ...] each, besides those of the kind `rows`
        self._rows: dict[str, list[Tensor]] = {}  # [K, rows, ...] each, to be concatenated

    def add(self, tensors: Tree) -> None:
        """Reduce tensors [count, ...] of the first clients with those of the batches before.

        The first batch is one of all clients.
        """
        for key, value in tensors.items():
            # Values are copied: they may be leaves themselves, which training overwrites.
            reduction = self.statistic.reduction(key)
            if reduction == "rows":
                self._rows.setdefault(key, []).append(value.clone())
            elif key not in self.reduced:
                self.reduced[key] = value.clone()
            else:
                mine = self.reduced[key][: len(value)]
                self.reduced[key][: len(value)] = REDUCTIONS[reduction](mine, value)

    def reorder(self, order: Tensor) -> None:
        """Put the clients in another order; `order` [K] has the old position of each client."""
        self.reduced = {key: value[order] for key, value in self.reduced.items()}

    def result(self) -> Tree:
        """Return the reduced tensors, [K, ...] each."""
        return self.reduced | {key: torch.cat(some, dim=1) for key, some in self._rows.items()}

    def see(self, context: Context) -> None:
        """Add what the Statistic returns for a batch of the only client."""
        self.add({key: value[None] for key, value in self.statistic.fn(context).items()})

    def finish(self, context: Context) -> None:
        """Write the result of the only client into the `ctx` of its context."""
        result = {key: value[0] for key, value in self.result().items()}
        if self.statistic.finish is not None:
            result = self.statistic.finish(context, result)
        context.ctx |= {
            f"{self.statistic.name}.{key}": value.clone() for key, value in result.items()
        }
