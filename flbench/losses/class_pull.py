"""Distance of class means from their prototypes, summed over the classes of a batch."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import EPSILON, class_sums, full_precision, wide


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
            the D elements of (zbar_k - P[k])^2.
        prototypes: Name of the ctx entry P [C, D], the prototypes; constants.
        present: Name of the ctx entry [C] bool: classes that have a prototype.
    """

    weight: float | str = 1.0
    form: Literal["class_mean", "mse"] = "class_mean"
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim; 0 if no class of the batch has a prototype."""
        batch, features, ctx = context.batch, context.out.features, context.ctx
        with full_precision(features):
            table = ctx[self.prototypes].to(wide(features, ctx[self.prototypes]))  # [C, D]
            sums, counts = class_sums(features.to(table.dtype), batch.y, len(table), batch.mask)
            squares = (sums / counts.clamp_min(1)[:, None] - table).square()  # [C, D]
            if self.form == "mse":
                values = squares.mean(dim=1)
            else:
                values = (squares.sum(dim=1) + EPSILON).sqrt()
            return torch.where((counts > 0) & ctx[self.present], values, 0.0).sum()
