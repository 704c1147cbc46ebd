"""Gradients of the cross entropy over all samples of a client, for a Statistic."""

from collections.abc import Callable

import torch
from torch import Tensor

from flbench.core.types import Context, Tree
from flbench.losses.cross_entropy import sum_cross_entropy


def summed_gradient(context: Context, at: Tree, weights: Callable[[Tree], Tree]) -> Tree:
    """Return the gradient of the cross entropy, summed over a batch, with respect to some tensors.

    The net is in eval mode, so BatchNorm uses its running statistics.

    Args:
        context: Context of the batch.
        at: Tensors at which the gradient is taken, by name.
        weights: Maps values of these tensors to what the net is called with.
    """

    def loss(values: Tree) -> Tensor:
        out = context.apply(weights(values), context.batch.x)
        return sum_cross_entropy(out.logits, context.batch.y, context.batch.mask)

    gradient: Tree = torch.func.grad(loss)(at)
    return gradient
