"""Class-balanced cross entropy: classes are weighted by their effective numbers of samples."""

from dataclasses import dataclass
from math import inf, log
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.config.schema import TermConfig
from flbench.core.registry import TERMS
from flbench.core.types import Context
from flbench.losses.class_counts import COUNTS, class_counts
from flbench.losses.cross_entropy import cross_entropies
from flbench.losses.similarity import full_precision, masked_mean


class ClassBalancedConfig(TermConfig):
    """Keys of the term `class_balanced`."""

    beta: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="how fast further samples of a class lose value; 0 is cross entropy, near 1 the"
        " weight of a class is the inverse of its number of samples",
    )


@TERMS.register("class_balanced")
@dataclass(frozen=True)
class ClassBalanced:
    """Mean over the batch of a_y times -log softmax(l)[y], in nats.

    l [B, C] are the logits and y [B] the labels. a_k is proportional to 1 / E_k with the effective
    number of samples E_k = (1 - beta^n_k) / (1 - beta), n_k the number of samples of class k in the
    client's own training part. With beta = 0, or equal n_k, the term is cross entropy.

    A class of which the client has no sample would have E_k = 0. No sample of the training part has
    the weight of such a class, so the weights are scaled to the mean 1 over the classes that the
    client has: otherwise the absent ones would take up almost all of the sum, and the loss of a
    client with few classes would vanish. A phase that trains on other samples weights those of an
    absent class as if the client had one (see `flbench.losses.class_counts.class_counts`).
    Source: class-balanced loss (Cui et al., CVPR 2019), section 4, with a_k summing to the number
    of classes as there; deviations: n_k are those of the client, and the sum is over its classes.

    Attributes:
        beta: In [0, 1).
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    Config: ClassVar[type[TermConfig]] = ClassBalancedConfig

    beta: float
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            counts = class_counts(context)  # [C]
            # 1 - beta^n without cancellation; the factor 1 - beta cancels in the scaling.
            effective = -torch.expm1(counts * (log(self.beta) if self.beta else -inf))  # [C]
            held = context.ctx[COUNTS] > 0  # [C]
            total = torch.where(held, 1 / effective, 0.0).sum()
            scale = held.sum() / torch.where(total > 0, total, 1.0)
            losses = cross_entropies(logits.to(counts.dtype), batch.y)  # [B]
            return masked_mean((scale / effective)[batch.y] * losses, batch.mask)
