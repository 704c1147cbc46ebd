"""Which classes a client holds, as a leaf that it sends."""

from dataclasses import dataclass

import torch

from flbench.client.program import Statistic, Step, Transform
from flbench.core.types import Info, StepContext, Tree
from flbench.losses.similarity import membership


def held_classes(classes: int) -> tuple[Step, ...]:
    """Return the steps that write `held` [C] bool: the classes of the client's training part."""
    return (Statistic("held", Count(classes)), Transform(write_held))


@dataclass(frozen=True)
class Count:
    """Number of samples by class [C]."""

    classes: int

    def __call__(self, context: StepContext) -> Tree:
        """Return the counts of one batch."""
        batch = context.batch
        return {"counts": membership(batch.y, self.classes, batch.mask, torch.float64).sum(dim=0)}


def write_held(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write which classes have samples."""
    return {"held": ctx["held.counts"] > 0}
