"""Class prototypes: how clients compute them, how they are sent, and how they predict.

A prototype is the mean feature of a class. A table of prototypes is a tensor [C, D] with flags [C]
bool for the classes that have one; a class without samples has a zero row and the flag False.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flbench.algorithms.base import Deployment
from flbench.algorithms.setting import Setting
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.client.program import LocalProgram, Statistic, Step, Transform, bind
from flbench.core.types import Context, Dispatch, Message, Tree
from flbench.losses.similarity import class_sums, membership

LEAVES = frozenset({"prototypes", "counts", "ids"})
"""Leaves of a client that `collect` writes: [C, D], [C] int32 and [C] int32."""

MASKS = (("prototypes", "held"), ("counts", "held"), ("ids", "held"))
"""Masks of the upload: a client sends D floats, a count and an id for each class that it holds."""


def sums_by_class(
    context: Context, classes: int, of: Callable[[Tensor], Tensor] | None = None
) -> Tree:
    """Return `sums` [C, D] of the features of a batch by class, and `counts` [C], in float64.

    Args:
        context: A batch.
        classes: Number of classes C.
        of: Function of features [B, D] whose result [B, D] is summed; None sums the features.
    """
    features, batch = context.out.features.double(), context.batch
    features = features if of is None else of(features)
    sums, counts = class_sums(features, batch.y, classes, batch.mask)
    return {"sums": sums, "counts": counts}


@dataclass(frozen=True)
class CountClasses:
    """Function of a Statistic that counts samples by class; the net is not called.

    The result is `counts` [C] float64. Padding does not count.

    Attributes:
        of_labels: The function reads labels alone, not what the net computes.
        classes: Number of classes C.
    """

    of_labels: ClassVar[bool] = True

    classes: int

    def __call__(self, context: Context) -> Tree:
        """Return the counts [C] of one batch."""
        batch = context.batch
        return {"counts": membership(batch.y, self.classes, batch.mask, torch.float64).sum(dim=0)}


def write_counts(context: Context) -> Tree:
    """Write the leaf `counts` [C] int32 from the result of the Statistic `held`."""
    return {"counts": context.ctx["held.counts"].to(torch.int32)}


def write_prototypes(context: Context) -> Tree:
    """Write the class means of the Statistic `classes` into the client's leaves, as `upload`."""
    counts = context.ctx["classes.counts"]
    means = context.ctx["classes.sums"] / counts.clamp_min(1.0)[:, None]
    return upload(means.to(context.leaves["prototypes"].dtype), counts)


def upload(prototypes: Tensor, counts: Tensor) -> Tree:
    """Return the leaves `LEAVES` of an upload, and `held` [C] bool for its masks.

    The prototypes [C, D] are zero for a class without samples; `counts` [C] are numbers of samples.
    """
    return {
        "prototypes": prototypes,
        "counts": counts.to(torch.int32),
        "ids": torch.arange(len(counts), dtype=torch.int32, device=counts.device),
        "held": counts > 0,
    }


def collect(
    setting: Setting,
    of: Callable[[Tensor], Tensor] | None = None,
    write: Callable[[Context], Tree] = write_prototypes,
) -> tuple[Step, ...]:
    """Return the steps with which a client computes its prototypes.

    The steps read the full training part in eval mode.

    Args:
        setting: Setting of the method.
        of: Function of features [B, D] whose result is summed by class; None sums the features.
        write: Transform that makes leaves from the sums and counts.
    """
    sums = Statistic("classes", bind(sums_by_class, setting.classes, of))
    return (*reestimate_batchnorm(setting), sums, Transform(write))


def empty(setting: Setting, start: Tree) -> tuple[Tree, Tree]:
    """Return the server's table and a client's leaves before any prototype was computed, all zero.

    They are `global.prototypes` [C, D] and `global.present` [C] bool for the server, and
    `prototypes` [C, D] and `counts` [C] int32 for one client, in the dtype of the seeded net.
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
    """Return the message with all `global.*` entries of the server.

    Until there is a prototype, the mask is False everywhere and the message costs nothing.
    """
    values = {name: value for name, value in server.items() if name.startswith("global.")}
    any_present = server["global.present"].any()
    return Message(values, {name: any_present.expand(len(value)) for name, value in values.items()})


@dataclass(frozen=True)
class NearestPrototype:
    """Prediction by the nearest prototype: the score of class k is -||z - P_k||.

    A class without a prototype has score -inf. Until there is a prototype, the scores are the
    logits of the classifier.

    Attributes:
        own: Only classes that the client holds can be predicted: those with a positive number in
            the leaf `counts`.
        prototypes: Name of the ctx entry with the prototypes P [C, D].
        present: Name of the ctx entry [C] bool with the classes that have a prototype.
        scores: What the scores are, for people; they are not logits.
    """

    scores: ClassVar[str] = "negative distances"

    own: bool
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: Context) -> Tensor:
        """Return scores [B, C]."""
        table, present = context.ctx[self.prototypes], context.ctx[self.present]
        if self.own:
            present = present & (context.leaves["counts"] > 0)

        features = context.out.features.to(table.dtype)
        distance = torch.cdist(features, table, compute_mode="donot_use_mm_for_euclid_dist")
        scores = torch.where(present, -distance, -torch.inf)
        return torch.where(present.any(), scores, context.out.logits.to(scores.dtype))


def rules(setting: Setting, dispatch: Dispatch) -> dict[str, Deployment]:
    """Return a client's model with each rule of prediction.

    `proto` takes the nearest of all prototypes, `proto_own` the nearest of those whose class the
    client holds, and `head` the client's classifier.
    """
    # A client that has not taken part yet knows its own classes too.
    held = Statistic("held", CountClasses(setting.classes))
    counted = LocalProgram((held, Transform(write_counts)))
    return {
        "proto": Deployment(dispatch, predict=NearestPrototype(own=False)),
        "proto_own": Deployment(dispatch, counted, predict=NearestPrototype(own=True)),
        "head": Deployment(dispatch),
    }
