"""Distillation of the softmax over prototypes into the classifier's logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import NEVER, cosines, masked_mean


@dataclass(frozen=True)
class PrototypeDistillation:
    """Mean over the batch of KL(teacher || student) over the classes that have a prototype.

    teacher = softmax over k of cos(z, P[k]) / temperature, a constant, for features z [B, D];
    student = softmax of the logits [B, C].
    Source: the ablation "A+B" of HFCD (Xu, 2025), table 2. The paper does not define the teacher;
    this one is flbench's reading.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        temperature: Divisor of the cosines, > 0.
        prototypes: Name of the ctx entry P [C, D], the prototypes; constants.
        present: Name of the ctx entry [C] bool: classes that have a prototype.

    Raises:
        ValueError: The temperature is not positive.
    """

    weight: float | str = 1.0
    temperature: float = 0.2
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim, in nats; 0 if no class has a prototype."""
        present = context.ctx[self.present]
        prototypes = context.ctx[self.prototypes]
        scores = cosines(context.out.features, prototypes).to(prototypes.dtype) / self.temperature
        teacher = torch.where(present, scores, NEVER).log_softmax(dim=1).detach()
        student = torch.where(present, context.out.logits.to(prototypes.dtype), NEVER).log_softmax(
            dim=1
        )
        divergence = torch.where(present, teacher.exp() * (teacher - student), 0.0).sum(
            dim=1
        )  # [B]
        return masked_mean(divergence, context.batch.mask)
