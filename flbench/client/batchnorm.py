"""BatchNorm statistics estimated anew on a client's training part (`train.batchnorm=drop`)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.client.program import Statistic, Step, Transform
from flbench.core.types import Info, StepContext, Tree
from flbench.models.base import NetSpec


@dataclass(frozen=True)
class Moments:
    """Sum, sum of squares and count of the inputs of one BatchNorm layer, per channel.

    Attributes:
        layer: its name.
        weights: (leaves, ctx) -> what the net is called with; None calls it with the leaves.
    """

    layer: str
    weights: Callable[[Tree, Tree], Tree] | None = None

    def __call__(self, context: StepContext) -> Tree:
        """Return the sums [channels] float64 and the count [] of one batch."""
        leaves = (
            context.leaves if self.weights is None else self.weights(context.leaves, context.ctx)
        )
        x, _ = context.apply(leaves, context.batch.x, activations=(self.layer,)).activations[
            self.layer
        ]
        return channel_sums(x, context.batch.mask)


def channel_sums(x: Tensor, mask: Tensor) -> Tree:
    """Return `sum` and `squares` [channels] float64 of x [B, channels, ...], and `count` [].

    Rows where `mask` [B] is False do not count.
    """
    x = x.double().flatten(2) if x.dim() > 2 else x.double()[:, :, None]  # [B, channels, positions]
    x = torch.where(mask[:, None, None], x, 0.0)
    count = mask.sum() * x.shape[2]
    return {"sum": x.sum(dim=(0, 2)), "squares": x.square().sum(dim=(0, 2)), "count": count}


@dataclass(frozen=True)
class Write:
    """Write the moments into the layer's running mean and (unbiased) variance."""

    layer: str

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the layer's statistics."""
        count = ctx[f"moments.{self.layer}.count"]
        mean = ctx[f"moments.{self.layer}.sum"] / count.clamp_min(1)
        squares = ctx[f"moments.{self.layer}.squares"] - count * mean.square()
        variance = (squares / (count - 1).clamp_min(1)).clamp_min(0.0)
        names = (f"{self.layer}.running_mean", f"{self.layer}.running_var")
        return {
            name: torch.where(count > 0, value.to(leaves[name].dtype), leaves[name])
            for name, value in zip(names, (mean, variance), strict=True)
        }


def recalibrate(
    net: NetSpec, weights: Callable[[Tree, Tree], Tree] | None = None
) -> tuple[Step, ...]:
    """Return the steps that estimate all BatchNorm statistics, layer after layer.

    A layer's inputs depend on the statistics of the layers before it, so each layer takes a pass
    of its own: exact, and dear for deep nets.

    Args:
        net: its layers.
        weights: (leaves, ctx) -> what the net is called with, the leaves' own statistics in it;
            None calls it with the leaves.
    """
    steps: list[Step] = []
    for layer in net.layers:
        if layer.kind == "batchnorm":
            steps += [
                Statistic(f"moments.{layer.name}", Moments(layer.name, weights)),
                Transform(Write(layer.name)),
            ]
    return tuple(steps)
