"""Class prototypes: collected at a client, and the shapes in which they travel (C13)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.algorithms.base import Setting
from flbench.client.program import Collector, Map
from flbench.losses.similarity import class_sums, unit
from flbench.types import Info, Message, Tree, View

LEAVES = frozenset({"prototypes", "counts", "ids"})
MASKS = (("prototypes", "held"), ("counts", "held"), ("ids", "held"))
"""Only classes that the client holds cross the link: D floats, a count and an id for each."""


@dataclass(frozen=True)
class ClassSums:
    """Sum of features [C, D] and number of samples [C] by class."""

    classes: int

    def __call__(self, view: View) -> Tree:
        """Return both for one batch."""
        sums, counts = class_sums(view.out.features, view.batch.y, self.classes, view.batch.mask)
        return {"sums": sums, "counts": counts}


def class_means(reduced: Tree, leaves: Tree, ctx: Tree) -> Tree:
    """Turn the sums of a Collector of ClassSums into means [C, D].

    A class without samples has zeros.
    """
    counts = reduced["counts"]
    means = torch.where(
        (counts > 0)[:, None], reduced["sums"] / counts.clamp_min(1.0)[:, None], 0.0
    )
    return {"means": means, "counts": counts}


def write_prototypes(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write what the Collector "classes" found into the leaves that are kept and sent."""
    counts = ctx["classes.counts"]
    ids = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
    return {
        "prototypes": ctx["classes.means"],
        "counts": counts.to(torch.int32),
        "ids": ids,
        "held": counts > 0,
    }


def collect(classes: int) -> tuple[Collector, Map]:
    """Return the steps that find a client's prototypes: whole training part, eval mode."""
    return Collector("classes", ClassSums(classes), finish=class_means), Map(write_prototypes)


def empty(setting: Setting, start: Tree) -> tuple[Tree, Tree]:
    """Return the server's table and a client's bank before anything was collected: no class is
    there.

    Args:
        setting: gives C and D.
        start: the seeded net's leaves, whose type of number is taken.
    """
    shape = (setting.classes, setting.net.features)
    zeros = torch.zeros(shape, dtype=start[setting.net.parameters[0]].dtype)
    present = torch.zeros(setting.classes, dtype=torch.bool)
    counts = torch.zeros(setting.classes, dtype=torch.int32)
    return (
        {"global.prototypes": zeros, "global.present": present},
        {"prototypes": zeros, "counts": counts},
    )


def table(server: Tree) -> Message:
    """Return the message with all `global.*` entries.

    Before there is any prototype it is empty, and free.
    """
    values = {name: value for name, value in server.items() if name.startswith("global.")}
    known = server["global.present"].any()
    return Message(values, {name: known.expand(len(value)) for name, value in values.items()})


def agreement(own: Tensor, held: Tensor) -> Tensor:
    """Return the mean cosine [N, C] of each client's prototype with the other holders', 1 for a
    lone one.

    Args:
        own: [N, C, D] prototypes, zero where a class is not held.
        held: [N, C] bool.
    """
    direction = unit(own)
    others = (direction * (direction.sum(dim=0) - direction)).sum(dim=2)
    holders = held.sum(dim=0)
    return torch.where(holders > 1, others / (holders - 1).clamp_min(1), 1.0)
