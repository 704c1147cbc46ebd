"""Distance of class means from their prototypes, summed over the classes of a batch."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import EPSILON, NEVER, class_sums, full_precision, membership, wide

Form = Literal["class_mean", "mse", "per_sample", "repel"]


@dataclass(frozen=True)
class ClassPull:
    """Sum over the classes k of the batch that have a prototype of ||zbar_k - P[k]||.

    zbar_k [D] is the mean feature of the batch's samples of class k. The norm is
    sqrt(||.||^2 + 1e-12), which has a gradient at 0. The sum is not divided by the number of
    classes in the batch.
    Source: FedPC (Liu et al., 2025), eq. 3, written for a batch; deviations: none for the form
    `class_mean`.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        form: The summand of a class. `class_mean`: the norm of zbar_k - P[k]; `mse`: the mean over
            the D elements of (zbar_k - P[k])^2; `per_sample`: the mean over the samples of the
            class of ||z - P[k]||; `repel`: -log softmax over the present classes l of
            -||zbar_k - P[l]||, at class k, which also moves class means away from other
            prototypes, as the paper's text describes.
        prototypes: Name of the ctx entry P [C, D], the prototypes; constants.
        present: Name of the ctx entry [C] bool: classes that have a prototype.
    """

    weight: float | str = 1.0
    form: Form = "class_mean"
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim; 0 if no class of the batch has a prototype."""
        batch, features, present = context.batch, context.out.features, context.ctx[self.present]
        with full_precision(features):
            dtype = wide(features, context.ctx[self.prototypes])
            table = context.ctx[self.prototypes].to(dtype)  # [C, D]
            classes = torch.arange(len(table), device=table.device)  # [C]
            # M points (samples or class means): `points` [M, D], their classes `own` [M], whether
            # they count [M], and their weights in the sum [M].
            if self.form == "per_sample":
                counts = membership(batch.y, len(table), batch.mask, dtype).sum(dim=0)
                points, own, counted = features.to(dtype), batch.y, batch.mask
                weights = 1 / counts.clamp_min(1)[own]
            else:
                sums, counts = class_sums(features.to(dtype), batch.y, len(table), batch.mask)
                points, own, counted = sums / counts.clamp_min(1)[:, None], classes, counts > 0
                weights = torch.ones_like(counts)
            if self.form == "mse":
                values = (points - table[own]).square().mean(dim=1)  # [M]
            else:
                values = _distance(points, table[own])  # [M]
            if self.form == "repel":
                scores = -_distance(points[:, None], table)  # [M, C]
                values = values + torch.where(present, scores, NEVER).logsumexp(dim=1)
            return torch.where(counted & present[own], weights * values, 0.0).sum()


def _distance(points: Tensor, prototypes: Tensor) -> Tensor:
    """Return the Euclidean distance over the last axis, smoothed at 0."""
    return ((points - prototypes).square().sum(dim=-1) + EPSILON).sqrt()
