"""Distillation of the global class similarities into the local ones."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import NEVER, class_sums, cosines


@dataclass(frozen=True)
class SemanticKL:
    """Sum over the classes p in A of KL(Pg[p] || Pl[p]).

    Pg and Pl [C, C] are softmaxes over the rows of the global and the local class similarities,
    restricted to A. The local similarities are cosines of class means: the mean feature of the
    batch for a class that is in the batch (the gradient flows through it), and otherwise the mean
    in the client's bank, a constant. A are the classes that are both in the bank and in the global
    table.
    Source: HFCD (Xu, 2025), equation of L_KD; deviations: none with the defaults.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        temperature: Divisor of the similarities, > 0.
        diagonal: Whether the similarity of a class with itself is part of its row.
        reverse: Whether the term is KL(Pl || Pg) instead.
        reduction: `sum` over the classes in A, or `mean`.
        similarity: Name of the ctx entry [C, C], the global similarities.
        present: Name of the ctx entry [C] bool: classes of the global table.
        bank: Name of the leaf [C, D], the client's class means.
        held: Name of the leaf [C], > 0 for classes in the bank.

    Raises:
        ValueError: The temperature is not positive.
    """

    weight: float | str = 1.0
    temperature: float = 1.0
    diagonal: bool = True
    reverse: bool = False
    reduction: Literal["mean", "sum"] = "sum"
    similarity: str = "global.similarity"
    present: str = "global.present"
    bank: str = "prototypes"
    held: str = "counts"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim, in nats; 0 if A has fewer than two classes."""
        bank, held = context.leaves[self.bank].detach(), context.leaves[self.held] > 0
        features = context.out.features
        sums, counts = class_sums(features, context.batch.y, bank.shape[0], context.batch.mask)
        means = torch.where(
            (counts > 0)[:, None], sums / counts.clamp_min(1.0)[:, None], bank.to(sums.dtype)
        )
        local = cosines(means, means).to(bank.dtype)  # [C, C]
        inside = held & context.ctx[self.present]  # [C], the classes in A
        pairs = inside[:, None] & inside[None, :]  # [C, C]
        if not self.diagonal:
            pairs = pairs & ~torch.eye(len(inside), dtype=torch.bool, device=pairs.device)
        teacher = self._log_softmax(context.ctx[self.similarity].to(local.dtype), pairs)
        student = self._log_softmax(local, pairs)
        if self.reverse:
            teacher, student = student, teacher
        # Outside A both logarithms are about NEVER and the probability is 0: these products are
        # left out.
        divergence = torch.where(pairs, teacher.exp() * (teacher - student), 0.0).sum()
        rows = inside.sum()
        divergence = torch.where(rows >= 2, divergence, 0.0)
        return (
            divergence / rows.clamp_min(1).to(divergence.dtype)
            if self.reduction == "mean"
            else divergence
        )

    def _log_softmax(self, similarity: Tensor, pairs: Tensor) -> Tensor:
        """Return the logarithm [C, C] of the softmax over each row, within `pairs` [C, C]."""
        return torch.where(pairs, similarity / self.temperature, NEVER).log_softmax(dim=1)
