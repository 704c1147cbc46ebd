"""How far a layer's output is from its data: tensors as scalar Gaussians, and scores of layers.

FedCPMD (eq. 6-8) and FedCMD score each layer by how it changes the distance of what flows through
the net to the inputs x and to the labels y. Such tensors differ in width, so each is reduced to one
number line: scaled to [0, 1], then mean and standard deviation over all of its entries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from flbench.client.program import Reduce
from flbench.core.types import StepContext, Tree

LEAST_STD = 1e-3  # of a constant tensor, as of the labels of a client with one class
NODES = 2049  # of a Gaussian's own grid, over 8 standard deviations to each side

REDUCE: Final[tuple[tuple[str, Reduce], ...]] = (
    ("low", "min"),
    ("high", "max"),
    ("sum", "sum"),
    ("squares", "sum"),
    ("count", "sum"),
)
"""How batches of what `Shift` finds are put together."""


class Gaussian(NamedTuple):
    """Normal distributions on the number line: mean and standard deviation > 0, of one shape."""

    mean: Tensor
    std: Tensor


Distance = Callable[[Gaussian, Gaussian], Tensor]
"""Symmetric, >= 0, and 0 between equal ones; shapes are broadcast."""


def of_means(p: Gaussian, q: Gaussian) -> Tensor:
    """Return |m_1 - m_2|: FedCMD's "Wasserstein" distance."""
    return (p.mean - q.mean).abs()


def wasserstein(p: Gaussian, q: Gaussian) -> Tensor:
    """Return the 2-Wasserstein distance sqrt((m_1 - m_2)^2 + (s_1 - s_2)^2)."""
    return ((p.mean - q.mean).square() + (p.std - q.std).square()).sqrt()


def hellinger(p: Gaussian, q: Gaussian) -> Tensor:
    """Return sqrt(1 - BC), in [0, 1]; BC is the Bhattacharyya coefficient."""
    return (1.0 - torch.exp(-bhattacharyya(p, q))).clamp_min(0.0).sqrt()


def bhattacharyya(p: Gaussian, q: Gaussian) -> Tensor:
    """Return -ln BC = (m_1 - m_2)^2 / (4 S) + ln(S / (2 s_1 s_2)) / 2 with S = s_1^2 + s_2^2."""
    both = p.std.square() + q.std.square()
    apart = (p.mean - q.mean).square() / (4.0 * both)
    return apart + 0.5 * torch.log(both / (2.0 * p.std * q.std)).clamp_min(0.0)


def jensen_shannon(p: Gaussian, q: Gaussian) -> Tensor:
    """Return (KL(p || r) + KL(q || r)) / 2 with r = (p + q) / 2, in nats, at most ln 2 (eq. 8).

    By the trapezoid rule over the nodes of both Gaussians' own grids, since on one common grid of
    2,049 nodes a Gaussian of the least width would fall between two nodes.
    """
    grid = torch.linspace(-8.0, 8.0, NODES, dtype=p.mean.dtype, device=p.mean.device)
    zero = torch.zeros_like(p.mean + q.mean)  # of both shapes together
    m1, s1, m2, s2 = ((v + zero)[..., None] for v in (p.mean, p.std, q.mean, q.std))
    x = torch.cat([m1 + s1 * grid, m2 + s2 * grid], dim=-1).sort(dim=-1).values
    of_p, of_q = _log_density(x, m1, s1), _log_density(x, m2, s2)
    of_r = torch.logaddexp(of_p, of_q) - log(2.0)
    inside = of_p.exp() * (of_p - of_r) + of_q.exp() * (of_q - of_r)
    area = ((inside[..., 1:] + inside[..., :-1]) * (x[..., 1:] - x[..., :-1])).sum(dim=-1) / 2.0
    return (area / 2.0).clamp(0.0, log(2.0))


def _log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * log(2.0 * pi)


DISTANCES: Final[Mapping[str, Distance]] = {
    "js": jensen_shannon,
    "wasserstein": wasserstein,
    "hellinger": hellinger,
    "bhattacharyya": bhattacharyya,
    "means": of_means,
}


@dataclass(frozen=True)
class Shift:
    """What Gaussians are made of: extent, sums and count of x, y and of all block outputs.

    Block outputs are o_0, what enters the first candidate layer, then o_1 ... o_L, what enters the
    next one (so after ReLU), and last the logits. Result: vectors of one entry per channel of x,
    then y, then o_0 ... o_L.

    Attributes:
        layers: the candidates' names, in the order of the forward pass.
        classes: C.
        scale: how tensors become [0, 1]. `channels`: outputs by their own smallest and largest
            entry, x by those of each channel (a table's columns), y by C - 1. `given`: the same,
            but x is in [0, 1] already. `tensors`: each by its own, x and y too.
        after: outputs after their activation, not before.
    """

    layers: tuple[str, ...]
    classes: int
    scale: Literal["channels", "given", "tensors"] = "channels"
    after: bool = True

    def __call__(self, context: StepContext) -> Tree:
        """Return `low, high, sum, squares, count` of one batch, float64."""
        x, mask = context.batch.x, context.batch.mask
        activations = context.apply(context.leaves, x, activations=self.layers).activations
        outputs = [activations[name][0] for name in self.layers] + [activations[self.layers[-1]][1]]
        if not self.after:
            outputs = [outputs[0]] + [activations[name][1] for name in self.layers]
        y = context.batch.y.double()[:, None, None]
        if self.scale == "tensors":
            first = [_measure(_flat(x), mask), _measure(y, mask)]
        else:
            channels = x.flatten(2) if x.dim() > 2 else x[:, :, None]
            of_x = _measure(channels, mask)
            of_y = _measure(y / max(1, self.classes - 1), mask)
            first = [of_x if self.scale == "channels" else _unit(of_x), _unit(of_y)]
        parts = [*first, *(_measure(_flat(o), mask) for o in outputs)]
        return {key: torch.cat([part[key] for part in parts]) for key, _ in REDUCE}

    def gaussians(self, found: Tree) -> tuple[Gaussian, Gaussian, Gaussian]:
        """Return x [], y [] and the block outputs [L + 1] of what was found in all batches.

        A tensor without width has mean 0.5.
        """
        low, width = found["low"], found["high"] - found["low"]
        some, count = width > 0, found["count"].clamp_min(1.0)
        mean = found["sum"] / count
        variance = found["squares"] / count - mean.square()
        width = torch.where(some, width, 1.0)
        mean = torch.where(some, (mean - low) / width, 0.5)
        variance = torch.where(some, variance / width.square(), 0.0)
        channels = len(mean) - len(self.layers) - 2
        # All channels of x have equally many entries: moments of the whole are means over them.
        of_x = mean[:channels].mean()
        second = (variance + mean.square())[:channels].mean()
        return (
            _gaussian(of_x, second - of_x.square()),
            _gaussian(mean[channels], variance[channels]),
            _gaussian(mean[channels + 1 :], variance[channels + 1 :]),
        )


def shift_scores(
    x: Gaussian, y: Gaussian, outputs: Gaussian, distance: Distance, *, by_side: bool = False
) -> Tensor:
    """Return s_l [L] of each layer: how much it moves its input from x to y, or away from it.

    FedCPMD, eq. 7: s_l = |(d(o_l, y) - d(o_l, x)) - (d(o_{l-1}, y) - d(o_{l-1}, x))|.
    FedCMD, `by_side`: s_l = ||d(o_l, y) - d(o_{l-1}, y)| - |d(o_l, x) - d(o_{l-1}, x)||.

    Args:
        x: [] inputs.
        y: [] labels.
        outputs: [L + 1] of the blocks.
        distance: d.
        by_side: absolute values of each side's change, before their difference.
    """
    to_y, to_x = distance(outputs, y), distance(outputs, x)
    by_y, by_x = to_y[1:] - to_y[:-1], to_x[1:] - to_x[:-1]
    return (by_y.abs() - by_x.abs()).abs() if by_side else (by_y - by_x).abs()


def _flat(value: Tensor) -> Tensor:
    """Return [B, 1, entries]."""
    return value.flatten(1)[:, None]


def _measure(value: Tensor, mask: Tensor) -> Tree:
    """Return the moments [channels] of value [B, channels, entries] over the rows of the mask."""
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
    """Return the moments of what is taken to lie in [0, 1]."""
    low = moments["low"]
    return moments | {"low": torch.zeros_like(low), "high": torch.ones_like(low)}


def _gaussian(mean: Tensor, variance: Tensor) -> Gaussian:
    return Gaussian(mean, variance.clamp_min(LEAST_STD**2).sqrt())
