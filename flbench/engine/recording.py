"""What a Collector has found so far."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from flbench.client.program import Collector, merge_context
from flbench.core.types import Tree, View

TOGETHER: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "rows": lambda a, b: torch.cat([a, b]),
}


class Recording:
    """Puts what a Collector finds in one batch after the other together."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._found: dict[str, Any] = {}

    def add(self, view: View) -> None:
        """Put what is found in one batch together with what was before it."""
        self.merge(self.see(view))

    def see(self, view: View) -> Tree:
        """Return what is found in one batch."""
        return self._collector.fn(view)

    def merge(self, found: Tree) -> None:
        """Put one batch's tensors together with those before it."""
        for key, value in found.items():
            reduce = TOGETHER[self._collector.reduction(key)]
            # The first one may be a leaf, which training writes to.
            before = self._found.get(key)
            self._found[key] = value.clone() if before is None else reduce(before, value)

    def finish(self, leaves: Tree, ctx: Tree) -> None:
        """Write the result into a client's ctx."""
        found: Tree = self._found
        if self._collector.finish is not None:
            found = self._collector.finish(found, leaves, ctx)
        copies = {key: value.clone() for key, value in found.items()}
        merge_context(ctx, self._collector.name, copies)
