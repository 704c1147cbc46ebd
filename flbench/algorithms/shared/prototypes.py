"""Class prototypes: collected at a client, and the shapes in which they travel (C13)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.algorithms.base import Setting
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import Statistic, Step, Transform
from flbench.core.types import Info, Message, StepContext, Tree
from flbench.losses.similarity import EPSILON, class_sums, unit

LEAVES = frozenset({"prototypes", "counts", "ids"})
MASKS = (("prototypes", "held"), ("counts", "held"), ("ids", "held"))
"""Only classes that the client holds cross the link: D floats, a count and an id for each."""


@dataclass(frozen=True)
class ClassSums:
    """Sum of features [C, D] and number of samples [C] by class, in float64.

    Attributes:
        classes: C.
        of: what is summed, of features [B, D]; None for the features themselves.
    """

    classes: int
    of: Callable[[Tensor], Tensor] | None = None

    def __call__(self, context: StepContext) -> Tree:
        """Return both for one batch."""
        features, batch = context.out.features.double(), context.batch
        features = features if self.of is None else self.of(features)
        sums, counts = class_sums(features, batch.y, self.classes, batch.mask)
        return {"sums": sums, "counts": counts}


def write_prototypes(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write what the Statistic "classes" found into the leaves that are kept and sent.

    A class without samples has a zero row, and is not held.
    """
    counts = ctx["classes.counts"]
    means = ctx["classes.sums"] / counts.clamp_min(1.0)[:, None]
    return upload(means.to(leaves["prototypes"].dtype), counts)


def upload(prototypes: Tensor, counts: Tensor) -> Tree:
    """Return the LEAVES, and which classes are held, of prototypes [C, D] and counts [C]."""
    return {
        "prototypes": prototypes,
        "counts": counts.to(torch.int32),
        "ids": torch.arange(len(counts), dtype=torch.int32, device=counts.device),
        "held": counts > 0,
    }


def collect(
    setting: Setting,
    of: Callable[[Tensor], Tensor] | None = None,
    write: Callable[[Tree, Tree, Tree, Info], Tree] = write_prototypes,
) -> tuple[Step, ...]:
    """Return the steps that find a client's prototypes: whole training part, eval mode (C13).

    Args:
        setting: of the method.
        of: what is summed by class, of features [B, D]; None for the features themselves.
        write: the Transform that makes leaves of sums and counts.
    """
    look = Statistic("classes", ClassSums(setting.classes, of))
    return (*estimated(setting), look, Transform(write))


def empty(setting: Setting, start: Tree) -> tuple[Tree, Tree]:
    """Return the server's table and a client's bank before any class was collected.

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
    """Return the message with all `global.*` entries; free before there is any prototype."""
    values = {name: value for name, value in server.items() if name.startswith("global.")}
    known = server["global.present"].any()
    return Message(values, {name: known.expand(len(value)) for name, value in values.items()})


def agreement(own: Tensor, held: Tensor) -> Tensor:
    """Return the mean cosine [N, C] of a client's prototype with the other holders'; 1 alone.

    Args:
        own: [N, C, D] prototypes, zero where a class is not held.
        held: [N, C] bool.
    """
    direction = unit(own)
    others = (direction * (direction.sum(dim=0) - direction)).sum(dim=2)
    holders = held.sum(dim=0)
    return torch.where(holders > 1, others / (holders - 1).clamp_min(1), 1.0)


def blend(tables: Tensor, present: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return each receiver's table [R, C, D], and the classes [R, C] bool that it has.

    P[r, c] = sum over the tables k that have class c of w[r, k] P[k, c] / the same sum of w[r, k];
    zero where these weights are zero. Accumulated in float64 with one cast at the end.

    Args:
        tables: [K, C, D].
        present: [K, C] bool.
        weights: [R, K], >= 0.
    """
    weights, held = weights.double(), present.double()
    total = weights @ held
    own = tables.double() * held[:, :, None]
    mean = torch.einsum("rk,kcd->rcd", weights, own) / total.clamp_min(EPSILON)[:, :, None]
    return mean.to(tables.dtype), total > 0


def table_cosines(tables: Tensor, present: Tensor) -> Tensor:
    """Return the cosines [J, J] float64 of whole tables, over the classes that both have.

    The diagonal is 1; two tables without a common class have 0.

    Args:
        tables: [J, C, D].
        present: [J, C] bool.
    """
    held = present.double()
    own = tables.double() * held[:, :, None]
    squares = own.square().sum(dim=2) @ held.T  # [j, l]: of table j, over the classes of l
    norms = (squares * squares.T).sqrt().clamp_min(EPSILON)
    return (torch.einsum("jcd,lcd->jl", own, own) / norms).fill_diagonal_(1.0)


def spread(table: Tensor, present: Tensor) -> float:
    """Return the mean distance between two present prototypes; small where they collapse.

    Args:
        table: [C, D].
        present: [C] bool.
    """
    return float(torch.pdist(table[present]).mean()) if int(present.sum()) > 1 else 0.0


@dataclass(frozen=True)
class NearestPrototype:
    """Scores = -||z - P[k]||; an absent class never wins.

    While there is no prototype the classifier decides.

    Attributes:
        own: only classes that the client holds can win.
        prototypes: ctx entry P [C, D].
        present: ctx entry [C] bool: the classes that have a prototype.
    """

    own: bool
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: StepContext) -> Tensor:
        """Return scores [B, C]."""
        table, present = context.ctx[self.prototypes], context.ctx[self.present]
        if self.own:
            present = present & (context.leaves["counts"] > 0)
        features = context.out.features.to(table.dtype)
        distance = torch.cdist(features, table, compute_mode="donot_use_mm_for_euclid_dist")
        scores = torch.where(present, -distance, -torch.inf)
        return torch.where(present.any(), scores, context.out.logits.to(scores.dtype))
