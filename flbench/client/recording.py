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
    "rows": lambda a, b: torch.cat([a, b]),
}
"""The function of two batches' tensors for each value of `Statistic.reduce`."""


class Recording:
    """The running reduction of one Statistic over the batches of one client.

    Args:
        statistic: The Statistic; its `fn` is called for each batch, its `finish` at the end.
    """

    def __init__(self, statistic: Statistic) -> None:
        self._statistic = statistic
        self._reduced: dict[str, Any] = {}

    def observe(self, context: StepContext) -> Tree:
        """Return the Statistic's tensors for one batch; nothing is stored."""
        return self._statistic.fn(context)

    def merge(self, tensors: Tree) -> None:
        """Reduce one batch's tensors with those of the batches before it."""
        for key, value in tensors.items():
            reduce = REDUCTIONS[self._statistic.reduction(key)]
            before = self._reduced.get(key)
            # The first value is copied: it may be a leaf itself, which training overwrites.
            self._reduced[key] = value.clone() if before is None else reduce(before, value)

    def finish(self, leaves: Tree, ctx: Tree) -> None:
        """Write the result into `ctx` under the names `NAME.KEY`.

        Args:
            leaves: The client's leaves, which `Statistic.finish` reads.
            ctx: The client's ctx; it is changed in place.
        """
        result: Tree = self._reduced
        if self._statistic.finish is not None:
            result = self._statistic.finish(result, leaves, ctx)
        copies = {key: value.clone() for key, value in result.items()}
        merge_context(ctx, self._statistic.name, copies)
