"""Adaptive local aggregation (FedALA): a client's own tensors mixed with the received ones.

Leaves: the received ones under their own names, `own.*`, their weights `ala.*`, and `settled`, a
bool leaf []: whether the weights have been learnt once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Info, StepContext, Tree

WEIGHT, OWN = "ala.", "own."


def mixed(leaves: Tree, name: str) -> Tensor:
    """Return own + (received - own) * weight; exactly what was received where the weight is 1."""
    own, received = leaves[OWN + name], leaves[name]
    return received + (own - received) * (1 - leaves[WEIGHT + name])


def differ(leaves: Tree, names: tuple[str, ...]) -> Tensor:
    """Return [] bool: whether the received and the own tensors differ anywhere."""
    return torch.stack([(leaves[OWN + n] != leaves[n]).any() for n in names]).any()


@dataclass(frozen=True)
class Mixed:
    """What the net is called with while the weights are learnt."""

    names: tuple[str, ...]
    top: tuple[str, ...]

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the net's leaves."""
        return {n: mixed(leaves, n) if n in self.top else leaves[n] for n in self.names}


@dataclass(frozen=True)
class Mix:
    """The end of the learning: the mixed tensors become the client's."""

    top: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return them, and whether the weights have been learnt once."""
        settled = leaves["settled"] | differ(leaves, self.top)
        return {name: mixed(leaves, name) for name in self.top} | {"settled": settled}


def nothing(context: StepContext) -> Tree:
    """Return nothing of interest: the Statistic exists for what its `finish` sees."""
    return {"epochs": context.batch.mask.sum()}


@dataclass(frozen=True)
class Plan:
    """How many epochs at most: none where there is nothing to mix, one after the first time."""

    top: tuple[str, ...]
    most: int

    def __call__(self, found: Tree, leaves: Tree, ctx: Tree) -> Tree:
        """Return `epochs` [] and whether the losses are asked, `first` []."""
        first = ~leaves["settled"]
        epochs = torch.where(first, self.most, 1) * differ(leaves, self.top)
        return {"epochs": epochs, "first": first}


@dataclass(frozen=True)
class Settled:
    """Whether the learning is over: after the planned epochs, or once losses agree."""

    window: int
    threshold: float

    def __call__(self, losses: Tensor, done: Tensor, ctx: Tree) -> Tensor:
        """Return [] bool, for the losses [most] of `done` epochs."""
        places = done - 1 - torch.arange(self.window, device=losses.device)
        last = losses[places.clamp(0, len(losses) - 1)]
        agree = (done > self.window) & (last.std(correction=0) < self.threshold)
        return (done >= ctx["ala.epochs"]) | (ctx["ala.first"] & agree)


def unit_interval(trained: Tree, ctx: Tree) -> Tree:
    """Return the weights cut to [0, 1]."""
    return {name: value.clamp(0.0, 1.0) for name, value in trained.items()}
