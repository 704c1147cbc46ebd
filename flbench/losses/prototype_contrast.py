"""Contrast of features with the prototypes of all classes, with weights on hard negatives."""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from flbench.core.tree import largest
from flbench.core.types import Context
from flbench.losses.similarity import NEVER, cosines, masked_mean


@dataclass(frozen=True)
class PrototypeContrast:
    """Mean over the batch of -log(e_y / (e_y + gamma sum_hard e_q + sum_other e_r)).

    e_k = exp(cos(z, P[k]) / temperature) for a feature z [D] with label y. The mean is over samples
    whose class has a prototype. The hard negatives of class p are the classes q != p with
    similarity[p, q] > threshold, or the `top` most similar classes.
    Source: HFCD (Xu, 2025), equation of L_cont; deviations: none.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        temperature: Divisor of the cosines (tau), > 0.
        threshold: Similarity in [-1, 1] above which a class is a hard negative (alpha).
        gamma: Weight of hard negatives in the denominator, > 0.
        top: Number of hard negatives per class; None takes the threshold instead.
        positive: Whether e_y is part of the denominator. Without it the term has no lower bound.
        prototypes: Name of the ctx entry P [C, D], the prototypes; constants.
        present: Name of the ctx entry [C] bool: classes that have a prototype.
        similarity: Name of the ctx entry [C, C], the similarities of classes.

    Raises:
        ValueError: The temperature or gamma is not positive.
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

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim, in nats; 0 if no sample's class has a prototype."""
        y, ctx = context.batch.y, context.ctx
        present = ctx[self.present]
        prototypes = ctx[self.prototypes]
        scores = (
            cosines(context.out.features, prototypes).to(prototypes.dtype) / self.temperature
        )  # [B, C]
        own = y[:, None] == torch.arange(scores.shape[1], device=y.device)  # [B, C]
        hard = self.hard_negatives(ctx[self.similarity], present)[y]  # [C, C] -> [B, C]
        denominator = torch.where(hard, scores + log(self.gamma), scores)
        allowed = present[None, :] if self.positive else present[None, :] & ~own
        denominator = torch.where(allowed, denominator, NEVER).logsumexp(dim=1)  # [B]
        positive = torch.where(own, scores, 0.0).sum(dim=1)  # [B]
        counts = present[y] & allowed.any(dim=1) & context.batch.mask
        return masked_mean(denominator - positive, counts)

    def hard_negatives(self, similarity: Tensor, present: Tensor) -> Tensor:
        """Return [C, C] bool: whether class q (column) is a hard negative of class p (row).

        Args:
            similarity: [C, C] similarities of classes.
            present: [C] bool: classes that have a prototype. Other classes are not negatives.
        """
        classes = torch.arange(len(present), device=present.device)
        others = present[None, :] & (classes[:, None] != classes[None, :])  # [C, C]
        if self.top is None:
            return others & (similarity > self.threshold)
        masked = torch.where(others, similarity, NEVER)
        return others & largest(masked, min(self.top, len(present) - 1))
