"""Contrast of features with the prototypes of all classes, hard negatives weighted."""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.similarity import NEVER, cosines, masked_mean


@dataclass(frozen=True)
class PrototypeContrast:
    """Mean over samples with a prototype of -log(e_y / (e_y + gamma sum_hard e_q + sum_other e_r)).

    e_k = exp(cos(z, P[k]) / temperature); the hard negatives of class p are the classes q != p with
    similarity[p, q] > threshold, or the `top` most similar ones. Prototypes are constants.
    Source: HFCD (Xu, 2025), eq. of L_cont; deviations: none.

    Attributes:
        weight: factor of the term.
        temperature: > 0, divides the cosines (tau).
        threshold: similarity above which a class is a hard negative (alpha).
        gamma: > 0, weight of hard negatives in the denominator.
        top: number of hard negatives per class instead of the threshold; None for the threshold.
        positive: whether e_y is part of the denominator; without it the term has no lower bound.
        prototypes: ctx entry P [C, D].
        present: ctx entry [C] bool: the classes that have a prototype.
        similarity: ctx entry [C, C].
    """

    weight: float | str = 1.0
    temperature: float = 0.2
    threshold: float = 0.7
    gamma: float = 1.3
    top: int | None = None
    positive: bool = True
    prototypes: str = "global.prototypes"
    present: str = "global.present"
    similarity: str = "global.similarity"

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.gamma <= 0:
            raise ValueError(
                f"temperature and gamma must be > 0, got {self.temperature} and {self.gamma}"
            )

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim, in nats; 0 where no sample's class has a prototype."""
        y, ctx = context.batch.y, context.ctx
        present = ctx[self.present]
        prototypes = ctx[self.prototypes]
        scores = (
            cosines(context.out.features, prototypes).to(prototypes.dtype) / self.temperature
        )  # [B, C]
        own = y[:, None] == torch.arange(scores.shape[1], device=y.device)
        hard = self.hard(ctx[self.similarity], present)[y]
        denominator = torch.where(hard, scores + log(self.gamma), scores)
        allowed = present[None, :] if self.positive else present[None, :] & ~own
        denominator = torch.where(allowed, denominator, NEVER).logsumexp(dim=1)
        positive = torch.where(own, scores, 0.0).sum(dim=1)
        counts = present[y] & allowed.any(dim=1) & context.batch.mask
        return masked_mean(denominator - positive, counts)

    def hard(self, similarity: Tensor, present: Tensor) -> Tensor:
        """Return [C, C] bool: whether class q is a hard negative of class p.

        Args:
            similarity: [C, C].
            present: [C] bool; absent classes are nobody's negatives.
        """
        classes = torch.arange(len(present), device=present.device)
        others = present[None, :] & (classes[:, None] != classes[None, :])
        if self.top is None:
            return others & (similarity > self.threshold)
        masked = torch.where(others, similarity, NEVER)
        chosen = masked.topk(min(self.top, len(present) - 1), dim=1).indices  # [C, top]
        return others & (chosen[:, :, None] == classes).any(dim=1)
