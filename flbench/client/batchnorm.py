"""BatchNorm statistics re-estimated on a client's training samples (`train.batchnorm=drop`)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.client.program import Statistic, Step, Transform
from flbench.core.types import Context, Tree
from flbench.models.base import NetSpec


@dataclass(frozen=True)
class Moments:
    """The function of a Statistic: moments of the inputs of one BatchNorm layer, per channel.

    Attributes:
        layer: Name of the layer.
        weights: `Deployment.weights`.
    """

    layer: str
    weights: Callable[[Context], Tree] | None = None

    def __call__(self, context: Context) -> Tree:
        """Return `sum` and `squares` [channels] float64, and `count` [], of one batch."""
        leaves = context.leaves | (self.weights(context) if self.weights else {})
        x, _ = context.apply(leaves, context.batch.x, activations=(self.layer,)).activations[
            self.layer
        ]
        return channel_sums(x, context.batch.mask)


def channel_sums(x: Tensor, mask: Tensor) -> Tree:
    """Return the sums that the mean and the variance of each channel are computed from.

    Args:
        x: Inputs of a layer, [B, channels, ...].
        mask: [B] bool; rows where it is False do not count.

    Returns:
        `sum` and `squares` [channels] float64, and `count` [] int64, the number of values per
        channel.
    """
    x = x.double().flatten(2) if x.dim() > 2 else x.double()[:, :, None]  # [B, channels, positions]
    x = torch.where(mask[:, None, None], x, 0.0)
    count = mask.sum() * x.shape[2]
    return {"sum": x.sum(dim=(0, 2)), "squares": x.square().sum(dim=(0, 2)), "count": count}


@dataclass(frozen=True)
class WriteStatistics:
    """The function of a Transform: moments become the layer's running mean and variance.

    The variance is the unbiased one, as PyTorch's BatchNorm stores it.

    Attributes:
        layer: Name of the layer.
    """

    layer: str

    def __call__(self, context: Context) -> Tree:
        """Return the layer's running statistics; the old ones if no sample was counted."""
        count = context.ctx[f"moments.{self.layer}.count"]
        mean = context.ctx[f"moments.{self.layer}.sum"] / count.clamp_min(1)
        squares = context.ctx[f"moments.{self.layer}.squares"] - count * mean.square()
        variance = (squares / (count - 1).clamp_min(1)).clamp_min(0.0)
        names = (f"{self.layer}.running_mean", f"{self.layer}.running_var")
        return {
            name: torch.where(count > 0, value.to(context.leaves[name].dtype), context.leaves[name])
            for name, value in zip(names, (mean, variance), strict=True)
        }


def recalibrate(net: NetSpec, weights: Callable[[Context], Tree] | None = None) -> tuple[Step, ...]:
    """Return the steps that re-estimate the statistics of all BatchNorm layers, in order.

    The inputs of a layer depend on the statistics of the layers before it. So each layer takes a
    pass of its own over the samples, which is exact, but slow for deep nets. Layers without running
    statistics, or whose statistics the user has fixed, are left out.

    Args:
        net: The description of the net; its layers are in the order of the forward pass.
        weights: `Deployment.weights`, without running statistics.
    """
    steps: list[Step] = []
    for layer in net.layers:
        if layer.kind == "batchnorm" and f"{layer.name}.running_mean" in layer.buffers:
            steps += [
                Statistic(f"moments.{layer.name}", Moments(layer.name, weights)),
                Transform(WriteStatistics(layer.name)),
            ]
    return tuple(steps)
