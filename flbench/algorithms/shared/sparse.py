"""Sparse models: densities of layers, random masks, masked weights, and a step that changes masks.

The mask of a leaf NAME is the bool leaf `mask.NAME` of the same shape. The leaf is zero where its
mask is False ("outside the mask").
"""

from collections.abc import Callable, Mapping
from math import pi, prod

import numpy as np
import torch
from torch import Tensor

from flbench.algorithms.setting import Need, Setting
from flbench.algorithms.shared.gradients import summed_gradient
from flbench.client.program import Statistic, Step, Transform, bind
from flbench.core.rng import generator
from flbench.core.types import Context, Samples, Tree
from flbench.models.base import NetSpec

MASK = "mask."
TRAINED = "trained."  # prefix of copies of the masks under which a client has trained in this round
STREAM = 0x3A5C  # key of the random stream of initial masks, larger than any round


def maskable(net: NetSpec) -> tuple[str, ...]:
    """Return the names of the weights of convolutions and linear layers, in the net's order.

    All other parameters have no mask.
    """
    layers = [layer for layer in net.layers if layer.kind in ("conv", "linear")]
    return tuple(n for layer in layers for n in layer.parameters if n.endswith("weight"))


MASKABLE = Need(
    "a net with convolutions or linear layers, whose weights have masks (`model.name`)",
    lambda setting: bool(maskable(setting.net)),
    "Take another net, or dfedavg.",
)


def erk(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, float]:
    """Return the density of each leaf by the Erdos-Renyi-Kernel rule.

    density_l = eps sum(shape_l) / prod(shape_l), at most 1, with eps such that the share of entries
    inside masks over all leaves is `density`. Source: Evci et al., ICML 2020, section 3.

    Args:
        shapes: Shape of each leaf.
        density: Share of entries inside masks, in (0, 1].
    """
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes.items()}
    size = {name: prod(shape) for name, shape in shapes.items()}
    budget = density * sum(size.values())
    full: set[str] = set()
    eps = 0.0
    for name in sorted(raw, key=lambda name: -raw[name]):  # leaves that reach density 1 first
        rest = sum(raw[other] * size[other] for other in raw if other not in full)
        eps = (budget - sum(size[other] for other in full)) / rest
        if eps * raw[name] <= 1.0:
            break
        full.add(name)
    return {name: 1.0 if name in full else eps * raw[name] for name in raw}


def start_masks(start: Tree, density: float, seed: int, clients: int) -> Tree:
    """Return random masks, [N, ...] bool under each leaf's name, different ones for each client.

    The masks of a leaf have the same number of ones for all clients.

    Args:
        start: The leaves, without a client axis.
        density: Share of entries inside masks over all leaves, in (0, 1].
        seed: Seed of the run.
        clients: Number of clients N.
    """
    shapes = {name: tuple(value.shape) for name, value in start.items()}
    ones = {
        name: max(1, int(share * start[name].numel() + 0.5))
        for name, share in erk(shapes, density).items()
    }
    masks = {
        name: torch.zeros(clients, value.numel(), dtype=torch.bool) for name, value in start.items()
    }
    for client in range(clients):
        rng = generator(seed, "method", STREAM, client)
        for name, mask in masks.items():
            chosen = rng.choice(mask.shape[1], size=ones[name], replace=False, shuffle=False)
            mask[client, torch.from_numpy(chosen.astype(np.int64))] = True
    return {name: mask.reshape(clients, *shapes[name]) for name, mask in masks.items()}


def inside(
    context: Context, names: tuple[str, ...], made: Callable[[Context], Tree] | None = None
) -> Tree:
    """Return masked weights, for `Phase.weights`.

    The mask multiplies the weights, so the gradient of an entry outside the mask is zero, and
    momentum and weight decay leave the entry zero too.

    Args:
        context: Its leaves have the masks, and the weights unless `made` makes them.
        names: Names of the tensors that have masks.
        made: context -> the weights without masks, and others; None for the leaves themselves.
    """
    others = made(context) if made else {}
    leaves = context.leaves | others
    return others | {name: leaves[name] * leaves[MASK + name] for name in names}


def search(
    names: tuple[str, ...], called: Callable[[Context], Tree], rate: float, setting: Setting
) -> tuple[Step, ...]:
    """Return the steps that change masks, with the gradient of one batch, redrawn in each round.

    Args:
        names: Names of the tensors that have masks.
        called: context -> the masked weights.
        rate: Share of a mask that is replaced in round 0, in [0, 1].
        setting: Setting of the method.
    """
    batch = Samples(limit=setting.train.batch_size, redraw="round")
    gradient = Statistic("dense", bind(dense_gradient, names, called), samples=batch)
    return gradient, Transform(bind(searched, names, called, rate, setting.rounds))


def dense_gradient(
    context: Context, names: tuple[str, ...], called: Callable[[Context], Tree]
) -> Tree:
    """Return the gradient of the cross entropy with respect to all entries of masked leaves.

    It is taken at the masked weights and summed over the samples of a batch. The net is in eval
    mode, so BatchNorm uses its running statistics.
    """
    made = called(context)
    masked = {name: made[name] for name in names}
    return summed_gradient(context, masked, lambda values: context.leaves | made | values)


def searched(
    context: Context,
    names: tuple[str, ...],
    called: Callable[[Context], Tree],
    rate: float,
    rounds: int,
) -> Tree:
    """Return new masks: the smallest weights leave a mask, and as many entries enter it.

    For each leaf, k = ceil(a_t ones) entries leave, with a_t = rate / 2 (1 + cos(pi t / T)) in
    round t of T. Then the k entries of largest |gradient| enter, the ctx entry "dense.NAME", among
    all entries outside the pruned mask: an entry that has just left can return, and all entries of
    a full mask do. A leaf with fewer than two ones does not change. The weights do not change here.
    Among equal values the lower index wins; values that differ by less than a millionth of the
    largest count as equal.
    """
    made = called(context)
    share = rate / 2 * (1 + torch.cos(pi * context.info.round.double() / rounds))
    changed: Tree = {}
    for name in names:
        mask = context.leaves[MASK + name].flatten()
        ones = mask.sum()
        # Without the subtraction, rounding could lift a whole number to the next one.
        k = torch.where(ones < 2, 0, torch.ceil(share * ones - 1e-9))
        worth, size = _coarse(context.ctx[f"dense.{name}"]), _coarse(made[name])
        leaving = _rank(torch.where(mask, size, torch.inf)) < k
        pruned = mask & ~leaving
        entering = _rank(torch.where(pruned, torch.inf, -worth)) < k
        changed[MASK + name] = (pruned | entering).reshape(made[name].shape)
    return changed


def _coarse(value: Tensor) -> Tensor:
    """Return the absolute values [n] of a leaf's entries, rounded to 2^-20 of the largest.

    Inputs that are always equal (an image's background) lead to entries that differ by rounding
    only. Rounding makes them equal, so that their order does not depend on the order of summation.
    """
    size = value.flatten().abs().double()
    return torch.round(size * (2.0**20 / size.amax().clamp_min(1e-300)))


def _rank(scores: Tensor) -> Tensor:
    """Return the rank [n] int64 of each score [n], 0 for the smallest."""
    order = torch.argsort(scores, stable=True)
    places = torch.arange(len(order), device=order.device)
    return torch.zeros_like(order).scatter(0, order, places)


def packed(masks: list[Tensor]) -> Tensor:
    """Return masks as packed bits [ceil(n / 8)] uint8, the first of n entries in the lowest bit."""
    bits = torch.cat([mask.flatten() for mask in masks])
    bits = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).reshape(-1, 8)
    weights = 2 ** torch.arange(8, device=bits.device)
    return (bits * weights).sum(dim=1).to(torch.uint8)
