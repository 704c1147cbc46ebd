"""Scores of layers by distribution shift: how far a layer moves its input from data to labels.

FedCMD and FedCPMD score each layer by how it changes the distances of what flows through the net to
the inputs x and to the labels y. These tensors differ in width. Therefore each of them is reduced
to one scalar Gaussian: it is scaled to [0, 1], unless the scale is `raw`, and mean and standard
deviation are taken over all of its entries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from flbench.client.program import Reduce
from flbench.core.types import Context, Tree

LEAST_STD = 1e-3  # standard deviation of a constant tensor, such as the labels of a single class

REDUCE: Final[tuple[tuple[str, Reduce], ...]] = (
    ("low", "min"),
    ("high", "max"),
    ("sum", "sum"),
    ("squares", "sum"),
    ("count", "sum"),
)
"""How the results of `Shift` for several batches are combined."""


class Gaussian(NamedTuple):
    """Scalar normal distributions: mean and standard deviation > 0, of the same shape."""

    mean: Tensor
    std: Tensor


Distance = Callable[[Gaussian, Gaussian], Tensor]
"""A symmetric distance >= 0 of Gaussians, 0 between equal ones; shapes are broadcast."""


@dataclass(frozen=True)
class Shift:
    """Function of a Statistic: moments of inputs x, labels y and outputs o_l of candidate layers.

    The results are `low` and `high` (smallest and largest entry), `sum`, `squares` (sum of the
    squared entries) and `count` (number of entries), float64 [channels + L + 2] each. `REDUCE`
    combines the results of several batches, and `gaussians` turns them into Gaussians, from which
    `shift_scores` computes the scores of layers (sources: FedCMD and FedCPMD). Each vector has one
    entry per channel of x, then one for y, then one for each of o_0 to o_L.

    o_0 is the input of the first candidate layer; o_1 to o_{L-1} are the inputs of the following
    ones, so that they include the ReLU between them; o_L is the output of the last candidate, the
    logits.

    Attributes:
        layers: Names of the L candidate layers, in the order of the forward pass.
        classes: Number of classes C.
        scale: How tensors are scaled to [0, 1]. `channels`: each output by its own smallest and
            largest entry, each channel of x (or column of a table) by its own, y by C - 1.
            `given`: like `channels`, but x is in [0, 1] already. `tensors`: each tensor by its own
            smallest and largest entry, x and y included; x counts as one channel. `raw`: no tensor
            is scaled, and y is the number of the class, 0 to C - 1.
    """

    layers: tuple[str, ...]
    classes: int
    scale: Literal["channels", "given", "tensors", "raw"] = "channels"

    def __call__(self, context: Context) -> Tree:
        """Return `low`, `high`, `sum`, `squares` and `count` of one batch, [channels + L + 2]."""
        x, mask = context.batch.x, context.batch.mask
        y = context.batch.y.double()[:, None, None]  # [B, 1, 1]

        activations = context.apply(context.leaves, x, activations=self.layers).activations
        inputs = [activations[name][0] for name in self.layers]
        blocks = [*inputs, activations[self.layers[-1]][1]]  # o_0 to o_L

        if self.scale in ("tensors", "raw"):
            data = [_moments(_flat(x), mask), _moments(y, mask)]
        else:
            channels = x.flatten(2) if x.dim() > 2 else x[:, :, None]  # [B, channels, entries]
            of_x = _moments(channels, mask)
            of_y = _moments(y / max(1, self.classes - 1), mask)
            data = [of_x if self.scale == "channels" else _unit(of_x), _unit(of_y)]

        parts = [*data, *(_moments(_flat(block), mask) for block in blocks)]
        if self.scale == "raw":
            parts = [_unit(part) for part in parts]
        return {key: torch.cat([part[key] for part in parts]) for key, _ in REDUCE}

    def gaussians(self, moments: Tree) -> tuple[Gaussian, Gaussian, Gaussian]:
        """Return the Gaussians of x [], y [] and o_0 to o_L [L + 1].

        The standard deviation is at least 1e-3. A constant tensor that is scaled has mean 0.5.

        Args:
            moments: Results of this function over all samples, combined by `REDUCE`.
        """
        low, width = moments["low"], moments["high"] - moments["low"]
        count = moments["count"].clamp_min(1.0)
        mean = moments["sum"] / count
        variance = moments["squares"] / count - mean.square()

        # Scale to [0, 1].
        varies = width > 0
        width = torch.where(varies, width, 1.0)
        mean = torch.where(varies, (mean - low) / width, 0.5)
        variance = torch.where(varies, variance / width.square(), 0.0)

        # All channels of x have the same number of entries: the moments of x are means over them.
        channels = len(mean) - len(self.layers) - 2
        mean_x = mean[:channels].mean()
        second_moment = (variance + mean.square())[:channels].mean()
        return (
            _gaussian(mean_x, second_moment - mean_x.square()),
            _gaussian(mean[channels], variance[channels]),
            _gaussian(mean[channels + 1 :], variance[channels + 1 :]),
        )


def shift_scores(
    x: Gaussian, y: Gaussian, outputs: Gaussian, distance: Distance, *, by_side: bool = False
) -> Tensor:
    """Return the score s_l of each layer, [L] >= 0; the smaller the score, the smaller the shift.

    FedCPMD, eq. 7: s_l = |(d(o_l, y) - d(o_l, x)) - (d(o_{l-1}, y) - d(o_{l-1}, x))|.
    FedCMD, `by_side`: s_l = ||d(o_l, y) - d(o_{l-1}, y)| - |d(o_l, x) - d(o_{l-1}, x)||.

    Args:
        x: Inputs, [].
        y: Labels, [].
        outputs: o_0 to o_L, [L + 1].
        distance: The distance d.
        by_side: Take the absolute change on the side of y and of x before their difference.
    """
    to_y, to_x = distance(outputs, y), distance(outputs, x)  # [L + 1]
    change_y, change_x = to_y[1:] - to_y[:-1], to_x[1:] - to_x[:-1]  # [L]
    if by_side:
        return (change_y.abs() - change_x.abs()).abs()
    return (change_y - change_x).abs()


def _flat(value: Tensor) -> Tensor:
    """Return all entries of each sample as one channel, [B, 1, entries]."""
    return value.flatten(1)[:, None]


def _moments(value: Tensor, mask: Tensor) -> Tree:
    """Return extent, sums and count of each channel over the samples inside the mask.

    Args:
        value: [B, channels, entries].
        mask: [B] bool, False for padded samples.
    """
    value, real = value.double(), mask[:, None, None]
    zeroed = torch.where(real, value, 0.0)
    return {
        "low": torch.where(real, value, torch.inf).amin(dim=(0, 2)),
        "high": torch.where(real, value, -torch.inf).amax(dim=(0, 2)),
        "sum": zeroed.sum(dim=(0, 2)),
        "squares": zeroed.square().sum(dim=(0, 2)),
        "count": (mask.sum() * value.shape[2]).double().expand(value.shape[1]),
    }


def _unit(moments: Tree) -> Tree:
    """Return the moments with the extent [0, 1], for values that need no scaling."""
    low = moments["low"]
    return moments | {"low": torch.zeros_like(low), "high": torch.ones_like(low)}


def _gaussian(mean: Tensor, variance: Tensor) -> Gaussian:
    return Gaussian(mean, variance.clamp_min(LEAST_STD**2).sqrt())
