"""Gradients of the cross entropy over all samples of a client, for a Collector."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.losses import CrossEntropy
from flbench.tree import only
from flbench.types import Tree, View


def summed_gradient(view: View, at: Tree, weights: Callable[[Tree], Tree]) -> Tree:
    """Return the gradient of the cross entropy, summed over the batch, with respect to `at`.

    In eval mode: BatchNorm by its running statistics.

    Args:
        view: of the batch.
        at: where, by name.
        weights: what the net is called with, made of tensors such as `at`.
    """

    def loss(some: Tree) -> Tensor:
        here = View(
            lambda: view.apply(weights(some), view.batch.x),
            batch=view.batch,
            ctx=view.ctx,
            leaves=view.leaves,
            start=view.start,
            apply=view.apply,
        )
        return CrossEntropy()(here) * view.batch.mask.sum()

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
