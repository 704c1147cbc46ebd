"""Scores of layers by distribution shift: how far a layer moves its input from data to labels.

What flows through the net, the inputs x and the labels y differ in width. Therefore each of them is
reduced to one scalar Gaussian, with the mean and standard deviation over all of its entries.
"""

from collections.abc import Callable, Mapping
from math import log, pi
from typing import Final, NamedTuple

import torch
from torch import Tensor

from flbench.algorithms.shared.election import layer_outputs
from flbench.client.program import Reduce
from flbench.core.types import Context, Tree

LEAST_STD = 1e-3  # standard deviation of a constant tensor, such as the labels of a single class
GRID_NODES = 2049  # of the grid of each Gaussian, which spans 8 standard deviations to each side

REDUCE: Final[tuple[tuple[str, Reduce], ...]] = (
    ("low", "min"),
    ("high", "max"),
    ("sum", "sum"),
    ("squares", "sum"),
    ("count", "sum"),
)
"""How the results of `moments` for several batches are combined."""


class Gaussian(NamedTuple):
    """Scalar normal distributions: mean and standard deviation > 0, of the same shape."""

    mean: Tensor
    std: Tensor


def moments(context: Context, layers: tuple[str, ...]) -> Tree:
    """Return smallest and largest entry, sums and number of entries, by the keys of `REDUCE`.

    Each is [channels + L + 2]: one entry per channel of x (or column of a table), then one for y,
    then one for each of o_0 to o_L.
    """
    batch, real = context.batch, context.batch.mask[:, None, None]
    x = batch.x.flatten(2) if batch.x.dim() > 2 else batch.x[:, :, None]
    outputs = (o.flatten(1)[:, None] for o in layer_outputs(context, layers))
    parts: dict[str, list[Tensor]] = {key: [] for key, _ in REDUCE}
    for values in (x, batch.y[:, None, None], *outputs):  # [B, channels, entries]
        values = values.double()
        zeroed, count = torch.where(real, values, 0.0), batch.mask.sum() * values.shape[2]
        parts["low"].append(torch.where(real, values, torch.inf).amin(dim=(0, 2)))
        parts["high"].append(torch.where(real, values, -torch.inf).amax(dim=(0, 2)))
        parts["sum"].append(zeroed.sum(dim=(0, 2)))
        parts["squares"].append(zeroed.square().sum(dim=(0, 2)))
        parts["count"].append(count.double().expand(values.shape[1]))
    return {key: torch.cat(part) for key, part in parts.items()}


def gaussians(moments: Tree, raw: bool, classes: int, layers: int) -> Gaussian:
    """Return the Gaussians of x, y and o_0 to o_L, [L + 3].

    The standard deviation is at least 1e-3. A constant tensor that is scaled has mean 0.5.

    Args:
        moments: Results of `moments` over all samples.
        raw: Do not scale to [0, 1].
        classes: Number of classes C; labels are scaled by C - 1.
        layers: Number of candidate layers L.
    """
    count = moments["count"].clamp_min(1.0)
    mean = moments["sum"] / count
    variance = moments["squares"] / count - mean.square()

    channels = len(mean) - layers - 2
    if not raw:
        is_y = torch.arange(len(mean), device=mean.device) == channels
        low = torch.where(is_y, 0.0, moments["low"])
        width = torch.where(is_y, max(1.0, classes - 1.0), moments["high"]) - low
        varies = width > 0
        width = torch.where(varies, width, 1.0)
        mean = torch.where(varies, (mean - low) / width, 0.5)
        variance = torch.where(varies, variance / width.square(), 0.0)

    # All channels of x have the same number of entries: the moments of x are means over them.
    mean_x = mean[:channels].mean()
    variance_x = (variance + mean.square())[:channels].mean() - mean_x.square()
    mean, variance = (
        torch.cat([one[None], rest[channels:]])
        for one, rest in ((mean_x, mean), (variance_x, variance))
    )
    return Gaussian(mean, variance.clamp_min(LEAST_STD**2).sqrt())


def shift_scores(
    context: Context, moments: Tree, distance: str, raw: bool, classes: int, layers: tuple[str, ...]
) -> Tree:
    """Return `scores` [L] float64, the score s_l of each layer by eq. 7 of FedCPMD.

    s_l = |(d(o_l, y) - d(o_l, x)) - (d(o_{l-1}, y) - d(o_{l-1}, x))|.
    """
    mean, std = gaussians(moments, raw, classes, len(layers))
    x, y, outputs = (Gaussian(mean[k], std[k]) for k in (0, 1, slice(2, None)))
    d = DISTANCES[distance]
    shift = d(outputs, y) - d(outputs, x)  # [L + 1]
    return {"scores": (shift[1:] - shift[:-1]).abs()}


def wasserstein(p: Gaussian, q: Gaussian) -> Tensor:
    """Return the 2-Wasserstein distance sqrt((m_1 - m_2)^2 + (s_1 - s_2)^2)."""
    return ((p.mean - q.mean).square() + (p.std - q.std).square()).sqrt()


def hellinger(p: Gaussian, q: Gaussian) -> Tensor:
    """Return sqrt(1 - BC) in [0, 1], where BC is the Bhattacharyya coefficient."""
    return (1.0 - torch.exp(-bhattacharyya(p, q))).clamp_min(0.0).sqrt()


def bhattacharyya(p: Gaussian, q: Gaussian) -> Tensor:
    """Return -ln BC = (m_1 - m_2)^2 / (4 S) + ln(S / (2 s_1 s_2)) / 2 with S = s_1^2 + s_2^2."""
    both = p.std.square() + q.std.square()
    apart = (p.mean - q.mean).square() / (4.0 * both)
    return apart + 0.5 * torch.log(both / (2.0 * p.std * q.std)).clamp_min(0.0)


def jensen_shannon(p: Gaussian, q: Gaussian) -> Tensor:
    """Return (KL(p || r) + KL(q || r)) / 2 with r = (p + q) / 2, in [0, ln 2] nats (eq. 8).

    The integral is computed by the trapezoid rule over the nodes of both Gaussians' own grids. On
    one common grid of 2,049 nodes, a Gaussian of the least width would fall between two nodes.
    """
    grid = torch.linspace(-8.0, 8.0, GRID_NODES, dtype=p.mean.dtype, device=p.mean.device)
    zero = torch.zeros_like(p.mean + q.mean)  # of both shapes together
    m1, s1, m2, s2 = ((v + zero)[..., None] for v in (p.mean, p.std, q.mean, q.std))

    x = torch.cat([m1 + s1 * grid, m2 + s2 * grid], dim=-1).sort(dim=-1).values
    log_p, log_q = _log_density(x, m1, s1), _log_density(x, m2, s2)
    log_r = torch.logaddexp(log_p, log_q) - log(2.0)
    inside = log_p.exp() * (log_p - log_r) + log_q.exp() * (log_q - log_r)
    area = ((inside[..., 1:] + inside[..., :-1]) * (x[..., 1:] - x[..., :-1])).sum(dim=-1) / 2.0
    return (area / 2.0).clamp(0.0, log(2.0))


def _log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * log(2.0 * pi)


DISTANCES: Final[Mapping[str, Callable[[Gaussian, Gaussian], Tensor]]] = {
    "js": jensen_shannon,
    "wasserstein": wasserstein,
    "hellinger": hellinger,
    "bhattacharyya": bhattacharyya,
}
