"""Gradients of the cross entropy over all samples of a client, for a Collector."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.tree import only
from flbench.core.types import Tree, View
from flbench.losses.cross_entropy import sum_cross_entropy


def summed_gradient(view: View, at: Tree, weights: Callable[[Tree], Tree]) -> Tree:
    """Return the gradient of the cross entropy, summed over the batch, with respect to `at`.

    In eval mode: BatchNorm by its running statistics.

    Args:
        view: of the batch.
        at: where, by name.
        weights: what the net is called with, made of tensors such as `at`.
    """

    def loss(some: Tree) -> Tensor:
        out = view.apply(weights(some), view.batch.x)
        return sum_cross_entropy(out.logits, view.batch.y, view.batch.mask)

    found: Tree = torch.func.grad(loss)(at)
    return found


@dataclass(frozen=True)
class SampleGradient:
    """The gradient of each named leaf summed over the samples, and their `count`."""

    names: tuple[str, ...]

    def __call__(self, view: View) -> Tree:
        """Return the sums of one batch."""
        found = summed_gradient(
            view, only(view.leaves, self.names), lambda some: view.leaves | some
        )
        return found | {"count": view.batch.mask.sum()}
