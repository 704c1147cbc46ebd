"""Reduction of what a Statistic returns, batch after batch, to one result."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from flbench.client.program import Statistic, merge_context
from flbench.core.types import StepContext, Tree

REDUCTIONS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""The function of two batches' tensors for each value of `Statistic.reduce` but `rows`."""


class Recording:
    """The running reduction of one Statistic over the batches of one client.

    Args:
        statistic: The Statistic; its `fn` is called for each batch, its `finish` at the end.
    """

    def __init__(self, statistic: Statistic) -> None:
        self._statistic = statistic
        self._reduced: dict[str, Any] = {}
        self._rows: dict[str, list[Tensor]] = {}  # to be concatenated

    def add(self, context: StepContext) -> None:
        """Reduce the Statistic's tensors for one batch with those of the batches before it."""
        for key, value in self._statistic.fn(context).items():
            # Values are copied: they may be leaves themselves, which training overwrites.
            reduction, before = self._statistic.reduction(key), self._reduced.get(key)
            if reduction == "rows":
                self._rows.setdefault(key, []).append(value.clone())
            elif before is None:
                self._reduced[key] = value.clone()
            else:
                self._reduced[key] = REDUCTIONS[reduction](before, value)

    def finish(self, leaves: Tree, ctx: Tree) -> None:
        """Write the result into `ctx` under the names `NAME.KEY`.

        Args:
            leaves: The client's leaves, which `Statistic.finish` reads.
            ctx: The client's ctx; it is changed in place.
        """
        result: Tree = self._reduced | {key: torch.cat(some) for key, some in self._rows.items()}
        if self._statistic.finish is not None:
            result = self._statistic.finish(result, leaves, ctx)
        copies = {key: value.clone() for key, value in result.items()}
        merge_context(ctx, self._statistic.name, copies)
