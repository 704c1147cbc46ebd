"""What a server knows of groups of clients: a net and a table of prototypes each, [J, ...]."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.algorithms.base import Setting
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.mixing import mix
from flbench.client.program import Statistic
from flbench.core.tree import nbytes, weighted_mean
from flbench.core.types import Message, Samples, StepContext, Tree
from flbench.losses.cross_entropy import sum_cross_entropy
from flbench.losses.similarity import EPSILON, class_sums

TABLE = ("group.prototypes", "group.present")
"""Prototypes [J, C, D], and the classes [J, C] bool that have one."""


def empty_table(setting: Setting, start: Tree) -> Tree:
    """Return one group's table before any class was collected, [C, D] and [C].

    Args:
        setting: gives C and D.
        start: the seeded net's leaves, whose type of number is taken.
    """
    return dict(zip(TABLE, prototypes.empty(setting, start)[0].values(), strict=True))


def spread(tree: Tree, count: int) -> Tree:
    """Return the same for each group, [J, ...]: copies, since a server's entries go their ways."""
    return {name: value.repeat(count, *(1,) * value.dim()) for name, value in tree.items()}


def within(old: Tree, sent: Message, weights: Tensor) -> Tree:
    """Return each group's weighted means over its clients; what nobody brought stays as it was.

    Args:
        old: the groups' nets and tables.
        sent: clients' leaves of the net [K, ...] and `prototypes` [K, C, D], whose mask says which
            classes they hold.
        weights: [J, K], 0 for clients of other groups.
    """
    rows = {name: value for name, value in sent.values.items() if name in old}
    means = [weighted_mean(rows, row) for row in weights]
    groups = {
        name: torch.stack([mean.get(name, old[name][j]) for j, mean in enumerate(means)])
        for name in rows
    }
    table, brought = prototypes.blend(sent.values["prototypes"], sent.mask["prototypes"], weights)
    groups[TABLE[0]] = torch.where(brought[:, :, None], table, old[TABLE[0]])
    groups[TABLE[1]] = brought | old[TABLE[1]]
    return groups


def mixed(groups: Tree, weights: Tensor) -> Tree:
    """Return nets and tables mixed from those of the groups, [R, ...] each.

    A class's prototype is the mean over the groups that have one.

    Args:
        groups: nets and tables.
        weights: [R, J], one row for each receiver.
    """
    net = {name: value for name, value in groups.items() if name not in TABLE}
    tables = prototypes.blend(groups[TABLE[0]], groups[TABLE[1]], weights)
    return mix(net, weights) | dict(zip(TABLE, tables, strict=True))


def pull_share(setting: Setting) -> Statistic:
    """Return what finds `pull_share`, L_p / (L_p + CE) by eq. 3, on one batch of a client."""
    rows = Samples(limit=setting.train.batch_size, redraw="round")
    return Statistic("pull", PullSums(setting.classes), finish=share, samples=rows)


@dataclass(frozen=True)
class PullSums:
    """Sums of features and numbers of samples by class, the sum of losses, and the count."""

    classes: int

    def __call__(self, context: StepContext) -> Tree:
        """Return the sums of one batch."""
        y, mask = context.batch.y, context.batch.mask
        sums, counts = class_sums(context.out.features, y, self.classes, mask)
        loss = sum_cross_entropy(context.out.logits, y, mask)
        return {"features": sums, "counts": counts, "loss": loss}


def share(found: Tree, leaves: Tree, ctx: Tree) -> Tree:
    """Return `pull_share` [] in [0, 1]; 0 without a sample or a prototype."""
    counts, table, present = found["counts"], *(ctx[name] for name in TABLE)
    means = found["features"] / counts.clamp_min(1)[:, None]
    away = torch.linalg.vector_norm(means - table, dim=1)
    pull = torch.where((counts > 0) & present, away, 0.0).sum()
    loss = found["loss"] / counts.sum().clamp_min(1)
    return {"pull_share": pull / (pull + loss).clamp_min(EPSILON)}


def payload(groups: Tree) -> int:
    """Return the bytes of one group's net and prototypes."""
    return nbytes({name: value[0] for name, value in groups.items() if name != TABLE[1]})
