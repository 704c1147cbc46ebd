"""A second model of a client among its leaves, and the best of several trainings of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flbench.algorithms.base import Setting
from flbench.algorithms.shared.memory import Copy
from flbench.client.program import Statistic, Step, Transform
from flbench.core.tree import only
from flbench.core.types import Info, Samples, StepContext, Tree
from flbench.losses.cross_entropy import sum_cross_entropy


@dataclass(frozen=True)
class SecondModel:
    """What the net is called with to be it: its leaves under the names of the net.

    Attributes:
        prefix: before the names of its leaves.
        names: the net's leaves, in order.
        own: those that it has; the others are the first model's.
    """

    prefix: str
    names: tuple[str, ...]
    own: frozenset[str]

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the net's leaves."""
        own = {name: leaves[self.prefix + name] for name in self.names if name in self.own}
        return {name: own.get(name, leaves[name]) for name in self.names}

    def leaves(self) -> tuple[str, ...]:
        """Return the names of its leaves, in order."""
        return tuple(self.prefix + name for name in self.names if name in self.own)


def second_model(prefix: str, setting: Setting) -> SecondModel:
    """Return the model: statistics that the run drops are not among its own leaves."""
    net, drops = setting.net, setting.train.batchnorm == "drop"
    own = net.names("all") - (net.statistics if drops else frozenset())
    return SecondModel(prefix, net.leaves, own)


def best_of(
    trainings: Sequence[Step], model: SecondModel, fresh: tuple[Step, ...]
) -> tuple[Step, ...]:
    """Return the steps that train the model in several ways and keep the best.

    That is the one with the smallest cross entropy on the client's validation part; the first where
    it has none. Its index is left in `choice`. Each training begins with the model as it was; where
    one of them diverges, the client fails.

    Args:
        trainings: of the model, at least one.
        model: the second model.
        fresh: steps before each evaluation (statistics that are estimated anew), or none.
    """
    names, steps = model.leaves(), list[Step]()
    for k, training in enumerate(trainings):
        look = Statistic(f"try{k}", SumLoss(model), samples=Samples("validation"))
        steps += [
            Transform(Rewind(names)),
            training,
            *fresh,
            look,
            Transform(Copy(f"try{k}.", names)),
        ]
    return (*steps, Transform(TakeBest(names, len(trainings))))


@dataclass(frozen=True)
class Rewind:
    """Write the leaves as they were at the beginning."""

    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return them."""
        return only(start, self.names)


@dataclass(frozen=True)
class SumLoss:
    """Sum of the model's losses over a batch, float64."""

    model: SecondModel

    def __call__(self, context: StepContext) -> Tree:
        """Return the sum, `loss`."""
        logits = context.apply(
            self.model(context.leaves, context.ctx), context.batch.x
        ).logits.double()
        return {"loss": sum_cross_entropy(logits, context.batch.y, context.batch.mask)}


@dataclass(frozen=True)
class TakeBest:
    """Write the leaves of the training with the smallest loss, and its index into `choice`."""

    names: tuple[str, ...]
    count: int

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return them and it."""
        losses = torch.stack([ctx[f"try{k}.loss"] for k in range(self.count)])
        best = losses.argmin()
        found: Tree = {"choice": best}
        for name in self.names:
            found[name] = torch.stack([leaves[f"try{k}.{name}"] for k in range(self.count)])[best]
        return found
