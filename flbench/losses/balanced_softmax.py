"""Balanced softmax: cross entropy of a softmax in which a class counts as often as it occurs."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flbench.config.schema import TermConfig
from flbench.core.registry import TERMS
from flbench.core.types import Context
from flbench.losses.class_counts import class_counts
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import full_precision


@TERMS.register("balanced_softmax")
@dataclass(frozen=True)
class BalancedSoftmax:
    """Mean over the batch of -log(n_y exp(l_y) / sum_k n_k exp(l_k)), in nats.

    l [B, C] are the logits, y [B] the labels, and n_k is the number of samples of class k in the
    client's own training part. Predictions use the logits without n_k, so a class is not preferred
    because it is frequent. With equal n_k the term is cross entropy. It equals logit adjustment
    with tau = 1, because the factor of all n_k cancels.
    Source: balanced softmax (Ren et al., NeurIPS 2020), eq. 3; deviations: n_k are those of the
    client, not of the federation, and a class without a sample has n_k = 1 (see
    `flbench.losses.class_counts.class_counts`).

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    Config: ClassVar[type[TermConfig]] = TermConfig

    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            counts = class_counts(context)  # [C]
            return mean_cross_entropy(logits.to(counts.dtype) + counts.log(), batch.y, batch.mask)
