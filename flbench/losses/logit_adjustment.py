"""Logit adjustment: cross entropy of logits that are shifted by the log prior of each class."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from flbench.config.schema import TermConfig
from flbench.core.registry import TERMS
from flbench.core.types import Context
from flbench.losses.class_counts import class_counts, log_prior
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import full_precision


class LogitAdjustmentConfig(TermConfig):
    """Keys of the term `logit_adjustment`."""

    tau: float = Field(
        1.0, ge=0, description="factor of the log prior; 0 is cross entropy, 1 balanced softmax"
    )


@TERMS.register("logit_adjustment")
@dataclass(frozen=True)
class LogitAdjustment:
    """Mean over the batch of -log softmax(l + tau log pi)[y], in nats.

    l [B, C] are the logits, y [B] the labels, and pi_k = n_k / n is the share of class k among the
    client's own training samples. Predictions use l alone, so the margin that a class k must keep
    from the label is larger by tau log(pi_k / pi_y). With equal shares the term is cross entropy.
    Source: logit adjustment (Menon et al., ICLR 2021), eq. 10; deviations: pi is that of the
    client, not of the federation, and a class without a sample has n_k = 1 (see
    `flbench.losses.class_counts.class_counts`).

    Attributes:
        tau: Factor of the log prior (the paper's temperature), >= 0.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    Config: ClassVar[type[TermConfig]] = LogitAdjustmentConfig

    tau: float
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            shift = self.tau * log_prior(class_counts(context))  # [C]
            return mean_cross_entropy(logits.to(shift.dtype) + shift, batch.y, batch.mask)
