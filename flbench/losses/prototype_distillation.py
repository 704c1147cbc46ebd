"""Ordinary distillation: the classifier's logits towards the class-prototype softmax."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.similarity import NEVER, cosines, masked_mean


@dataclass(frozen=True)
class PrototypeDistillation:
    """Mean over the batch of KL(teacher || student) over the classes that have a prototype.

    teacher = softmax over k of cos(z, P[k]) / temperature (constant), student = softmax of the
    logits.
    Source: the ablation "A+B" of HFCD (Xu, 2025), table 2, whose teacher the paper does not define;
    deviations: this teacher is flbench's reading.

    Attributes:
        weight: factor of the term.
        temperature: > 0, divides the cosines.
        prototypes: ctx entry P [C, D].
        present: ctx entry [C] bool: the classes that have a prototype.
    """

    weight: float | str = 1.0
    temperature: float = 0.2
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim, in nats; 0 while there are no prototypes."""
        present = context.ctx[self.present]
        prototypes = context.ctx[self.prototypes]
        scores = cosines(context.out.features, prototypes).to(prototypes.dtype) / self.temperature
        teacher = torch.where(present, scores, NEVER).log_softmax(dim=1).detach()
        student = torch.where(present, context.out.logits.to(prototypes.dtype), NEVER).log_softmax(
            dim=1
        )
        divergence = torch.where(present, teacher.exp() * (teacher - student), 0.0).sum(dim=1)
        return masked_mean(divergence, context.batch.mask)
