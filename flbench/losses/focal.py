"""Focal loss: cross entropy in which samples that the net predicts well count less."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.config.schema import TermConfig
from flbench.core.registry import TERMS
from flbench.core.types import Context
from flbench.losses.cross_entropy import cross_entropies
from flbench.losses.similarity import full_precision, masked_mean, wide


class FocalConfig(TermConfig):
    """Keys of the term `focal`."""

    gamma: float = Field(
        2.0,
        ge=0,
        description="exponent of 1 - p, with p the probability of the label; 0 is cross entropy",
    )


@TERMS.register("focal")
@dataclass(frozen=True)
class Focal:
    """Mean over the batch of -(1 - p_y)^gamma log(p_y), in nats.

    p [B, C] is the softmax of the logits and y [B] the labels. With gamma = 0 the term is cross
    entropy. It reads no class counts, so a class of which the client has no sample is treated as by
    cross entropy.
    Source: focal loss (Lin et al., ICCV 2017), eq. 4, which has two classes, with the softmax for C
    classes; deviations: none. The paper's variant with a factor alpha per class (eq. 5) is not
    included; `class_balanced` weights classes.

    Attributes:
        gamma: Focusing parameter, >= 0.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    Config: ClassVar[type[TermConfig]] = FocalConfig

    gamma: float
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            losses = cross_entropies(logits.to(wide(logits)), batch.y)  # [B], -log p_y
            # 1 - p_y without cancellation. At p_y = 1 the power has no finite derivative for
            # gamma < 1: below the smallest normal number the factor is a constant.
            missing = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
            return masked_mean(missing.pow(self.gamma) * losses, batch.mask)
