"""Sparse models: densities by layer, masks, what is called under a mask, prune and regrow.

The mask of a leaf NAME is the bool leaf `mask.NAME`; the leaf is zero outside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flbench.algorithms.shared.gossip import LOCAL
from flbench.algorithms.shared.gradients import summed_gradient
from flbench.core.rng import generator, uniform
from flbench.core.types import Info, StepContext, Tree
from flbench.models.base import NetSpec

MASK = "mask."
STREAM = 0x3A5C  # key of the start masks' stream; no round reaches it

Called = Callable[[Tree, Tree], Tree] | None


def maskable(net: NetSpec) -> tuple[str, ...]:
    """Return the weights of convolutions and linear layers, in order; all else is dense."""
    layers = [layer for layer in net.layers if layer.kind in ("conv", "linear")]
    return tuple(n for layer in layers for n in layer.parameters if n.endswith("weight"))


def erk(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, float]:
    """Return the density of each leaf: Erdos-Renyi-Kernel, over all leaves `density` on average.

    density_l = eps sum(shape_l) / prod(shape_l), at most 1; what a leaf that is full cannot take
    goes to the others. Source: Evci et al., ICML 2020, section 3.

    Args:
        shapes: of the leaves.
        density: in (0, 1].
    """
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes.items()}
    size = {name: prod(shape) for name, shape in shapes.items()}
    budget = density * sum(size.values())
    full: set[str] = set()
    eps = 0.0
    for name in sorted(raw, key=lambda name: -raw[name]):  # those that fill up first
        rest = sum(raw[other] * size[other] for other in raw if other not in full)
        eps = (budget - sum(size[other] for other in full)) / rest
        if eps * raw[name] <= 1.0:
            break
        full.add(name)
    return {name: 1.0 if name in full else eps * raw[name] for name in raw}


def start_masks(start: Tree, density: float, seed: int, clients: int, *, own: bool) -> Tree:
    """Return random masks [N, ...] of leaves by the leaves' names; equally many ones for all.

    Args:
        start: the leaves, without a client axis.
        density: over all of them.
        seed: the run's.
        clients: N.
        own: each client has masks of its own; else all have those of the first.
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
        rng = generator(seed, "method", STREAM, client if own else 0)
        for name, mask in masks.items():
            chosen = rng.choice(mask.shape[1], size=ones[name], replace=False, shuffle=False)
            mask[client, torch.from_numpy(chosen.astype(np.int64))] = True
    return {name: mask.reshape(clients, *shapes[name]) for name, mask in masks.items()}


@dataclass(frozen=True)
class Masked:
    """What the net is called with: `outer` of what is zero outside the masks.

    Gradients stop at the zeros, so momentum and weight decay leave them zero as well.

    Attributes:
        names: the leaves that have masks.
        inner: makes what is masked; None for the leaves themselves.
        outer: makes weights of what is masked; None where it is them.
    """

    names: tuple[str, ...]
    inner: Called = None
    outer: Called = None

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the weights by the net's own names."""
        return self.weights(self.masked(leaves, ctx), ctx)

    def weights(self, masked: Tree, ctx: Tree) -> Tree:
        """Return the weights that are made of what was masked."""
        return masked if self.outer is None else self.outer(masked, ctx)

    def masked(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return what is masked, and what stands beside it."""
        if self.inner is not None:
            made = self.inner(leaves, ctx)
        else:
            beside = (MASK, LOCAL)
            made = {name: value for name, value in leaves.items() if not name.startswith(beside)}
        return made | {name: made[name] * leaves[MASK + name] for name in self.names}


@dataclass(frozen=True)
class DenseGradient:
    """The gradient of the cross entropy at the masked weights, also where they are masked.

    In eval mode: BatchNorm by its running statistics. Summed over the samples.

    Attributes:
        called: what the net is called with.
    """

    called: Masked

    def __call__(self, context: StepContext) -> Tree:
        """Return the gradient of each leaf that has a mask."""
        made = self.called.masked(context.leaves, context.ctx)

        def weights(some: Tree) -> Tree:
            return self.called.weights(made | some, context.ctx)

        return summed_gradient(context, {name: made[name] for name in self.called.names}, weights)


def least_row(context: StepContext) -> Tree:
    """Return the smallest row number of a batch, which no other client has."""
    largest = torch.iinfo(torch.int64).max
    return {"row": torch.where(context.batch.mask, context.batch.key, largest).amin()}


@dataclass(frozen=True)
class Search:
    """New masks: the smallest weights leave, as many entries come in from outside.

    By leaf: k = min(ceil(a_t ones), entries outside) with a_t = rate / 2 (1 + cos(pi t / T)); those
    that leave cannot come back at once. A leaf of less than two ones stays as it is. The weights
    themselves do not change here: what leaves is not sent, what comes in is sent as zero. Ties go
    to the lower index, and what differs by less than a millionth of the largest is a tie.

    Attributes:
        called: what the net is called with.
        by: `gradient`: those of largest |gradient| come in, from ctx "dense.NAME"; `random`: any,
            keyed by seed, client (ctx "least.row") and round.
        rate: a_0, in [0, 1].
        rounds: T.
        seed: the run's.
    """

    called: Masked
    by: Literal["gradient", "random"]
    rate: float
    rounds: int
    seed: int

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the masks that change."""
        made = self.called.masked(leaves, ctx)
        share = self.rate / 2 * (1 + torch.cos(pi * info.round.double() / self.rounds))
        changed: Tree = {}
        for number, name in enumerate(self.called.names):
            mask = leaves[MASK + name].flatten()
            ones = mask.sum()
            # A whole number that rounding made a little more is that number, on every device.
            k = torch.minimum(torch.ceil(share * ones - 1e-9), mask.numel() - ones)
            k = torch.where(ones < 2, 0, k)
            if self.by == "gradient":
                worth = _coarse(ctx[f"dense.{name}"])
            else:
                worth = self._random(ctx["least.row"], info.round, number, mask)
            size = _coarse(made[name])
            leaves_ = _rank(torch.where(mask, size, torch.inf)) < k
            comes = _rank(torch.where(mask, torch.inf, -worth)) < k
            changed[MASK + name] = ((mask & ~leaves_) | comes).reshape(made[name].shape)
        return changed

    def _random(self, row: Tensor, round_: Tensor, number: int, mask: Tensor) -> Tensor:
        """Return a number in [0, 1) for each entry."""
        entry = torch.arange(mask.numel(), device=mask.device)
        key = uniform(row + (round_ << 32), number)  # of this client, round and leaf
        mixed = (key * 2.0**52).long() + (self.seed & (2**52 - 1))
        return uniform(mixed ^ (entry << 20), len(self.called.names) + number)


def _coarse(value: Tensor) -> Tensor:
    """Return the sizes [n] of a leaf's entries in millionths (2^-20) of the largest, whole.

    Inputs that are always equal (an image's background) make entries that are equal but for
    rounding; whole numbers make them ties, which no order of summation breaks.
    """
    size = value.flatten().abs().double()
    return torch.round(size * (2.0**20 / size.amax().clamp_min(1e-300)))


def _rank(scores: Tensor) -> Tensor:
    """Return the place of each score [n] among all, smallest first."""
    order = torch.argsort(scores, stable=True)
    places = torch.arange(len(order), device=order.device)
    return torch.zeros_like(order).scatter(0, order, places)


def packed(masks: list[Tensor]) -> Tensor:
    """Return masks as bits [ceil(n / 8)] uint8, the first entry in the lowest bit."""
    bits = torch.cat([mask.flatten() for mask in masks])
    bits = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).reshape(-1, 8)
    weights = 2 ** torch.arange(8, device=bits.device)
    return (bits * weights).sum(dim=1).to(torch.uint8)
