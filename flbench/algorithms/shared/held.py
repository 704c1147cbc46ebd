"""Which classes a client holds, as a leaf that it sends."""

from dataclasses import dataclass

import torch

from flbench.client.program import Collector, Map, Step
from flbench.core.types import Info, Tree, View
from flbench.losses.similarity import membership


def held_classes(classes: int) -> tuple[Step, ...]:
    """Return the steps that write `held` [C] bool: the classes of the client's training part."""
    return (Collector("held", Count(classes)), Map(write_held))


@dataclass(frozen=True)
class Count:
    """Number of samples by class [C]."""

    classes: int

    def __call__(self, view: View) -> Tree:
        """Return the counts of one batch."""
        batch = view.batch
        return {"counts": membership(batch.y, self.classes, batch.mask, torch.float64).sum(dim=0)}


def write_held(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write which classes have samples."""
    return {"held": ctx["held.counts"] > 0}
