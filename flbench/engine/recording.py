"""What a Statistic has found so far."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from flbench.client.program import Statistic, merge_context
from flbench.core.types import StepContext, Tree

TOGETHER: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "rows": lambda a, b: torch.cat([a, b]),
}


class Recording:
    """Puts what a Statistic finds in one batch after the other together."""

    def __init__(self, statistic: Statistic) -> None:
        self._statistic = statistic
        self._found: dict[str, Any] = {}

    def add(self, context: StepContext) -> None:
        """Put what is found in one batch together with what was before it."""
        self.merge(self.see(context))

    def see(self, context: StepContext) -> Tree:
        """Return what is found in one batch."""
        return self._statistic.fn(context)

    def merge(self, found: Tree) -> None:
        """Put one batch's tensors together with those before it."""
        for key, value in found.items():
            reduce = TOGETHER[self._statistic.reduction(key)]
            # The first one may be a leaf, which training writes to.
            before = self._found.get(key)
            self._found[key] = value.clone() if before is None else reduce(before, value)

    def finish(self, leaves: Tree, ctx: Tree) -> None:
        """Write the result into a client's ctx."""
        found: Tree = self._found
        if self._statistic.finish is not None:
            found = self._statistic.finish(found, leaves, ctx)
        copies = {key: value.clone() for key, value in found.items()}
        merge_context(ctx, self._statistic.name, copies)
