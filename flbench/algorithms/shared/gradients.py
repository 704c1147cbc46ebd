"""Gradients of the cross entropy over all samples of a client, for a Statistic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.tree import only
from flbench.core.types import StepContext, Tree
from flbench.losses.cross_entropy import sum_cross_entropy


def summed_gradient(context: StepContext, at: Tree, weights: Callable[[Tree], Tree]) -> Tree:
    """Return the gradient of the cross entropy, summed over the batch, with respect to `at`.

    In eval mode: BatchNorm by its running statistics.

    Args:
        context: of the batch.
        at: where, by name.
        weights: what the net is called with, made of tensors such as `at`.
    """

    def loss(some: Tree) -> Tensor:
        out = context.apply(weights(some), context.batch.x)
        return sum_cross_entropy(out.logits, context.batch.y, context.batch.mask)

    found: Tree = torch.func.grad(loss)(at)
    return found


@dataclass(frozen=True)
class SampleGradient:
    """The gradient of each named leaf summed over the samples, and their `count`."""

    names: tuple[str, ...]

    def __call__(self, context: StepContext) -> Tree:
        """Return the sums of one batch."""
        found = summed_gradient(
            context, only(context.leaves, self.names), lambda some: context.leaves | some
        )
        return found | {"count": context.batch.mask.sum()}
