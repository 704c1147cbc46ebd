"""Distillation of a global matrix of class similarities into the local one."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.similarity import NEVER, class_sums, cosines


@dataclass(frozen=True)
class SemanticKL:
    """Mean over p in A of KL(Pg[p] || Pl[p]), P = row softmax of class similarities within A.

    Pg comes from the global matrix. Pl comes from the cosines of the local class means: the mean of
    the batch for a class in it (that is where the gradient runs), the client's bank otherwise
    (constant). A = classes in the bank and in the global table; fewer than two give 0.
    Source: HFCD (Xu, 2025), eq. of L_KD; deviations: divided by |A| (`reduction="sum"` does not).

    Attributes:
        weight: factor of the term.
        temperature: > 0, divides the similarities.
        diagonal: whether a class's similarity with itself takes part.
        reverse: KL(Pl || Pg) instead.
        reduction: `mean` or `sum` over the rows.
        similarity: ctx entry [C, C]: the global matrix.
        present: ctx entry [C] bool: classes of the global table.
        bank: leaf [C, D]: the client's own class means.
        held: leaf [C]: > 0 for classes in the bank.
    """

    weight: float | str = 1.0
    temperature: float = 1.0
    diagonal: bool = True
    reverse: bool = False
    reduction: Literal["mean", "sum"] = "mean"
    similarity: str = "global.similarity"
    present: str = "global.present"
    bank: str = "prototypes"
    held: str = "counts"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim, in nats."""
        bank, held = context.leaves[self.bank].detach(), context.leaves[self.held] > 0
        features = context.out.features
        sums, counts = class_sums(features, context.batch.y, bank.shape[0], context.batch.mask)
        means = torch.where(
            (counts > 0)[:, None], sums / counts.clamp_min(1.0)[:, None], bank.to(sums.dtype)
        )
        local = cosines(means, means).to(bank.dtype)
        inside = held & context.ctx[self.present]  # A
        pairs = inside[:, None] & inside[None, :]
        if not self.diagonal:
            pairs = pairs & ~torch.eye(len(inside), dtype=torch.bool, device=pairs.device)
        teacher = self._rows(context.ctx[self.similarity].to(local.dtype), pairs)
        student = self._rows(local, pairs)
        if self.reverse:
            teacher, student = student, teacher
        # Outside A both logarithms are about NEVER and the probability 0: the product is left out.
        divergence = torch.where(pairs, teacher.exp() * (teacher - student), 0.0).sum()
        rows = inside.sum()
        divergence = torch.where(rows >= 2, divergence, 0.0)
        return (
            divergence / rows.clamp_min(1).to(divergence.dtype)
            if self.reduction == "mean"
            else divergence
        )

    def _rows(self, similarity: Tensor, pairs: Tensor) -> Tensor:
        """Return the logarithm of the row softmax over the pairs that take part, [C, C]."""
        return torch.where(pairs, similarity / self.temperature, NEVER).log_softmax(dim=1)
