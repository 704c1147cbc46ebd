"""Contrast of features: towards the received model's, away from the client's previous model's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import StepContext, Tree
from flbench.losses.similarity import full_precision, masked_mean, unit, wide


@dataclass(frozen=True)
class ModelContrast:
    """Mean over the batch of -log(e_g / (e_g + e_p)), e_k = exp(cos(z, z_k) / temperature).

    z_g are the features under the received model (`view.start`, or a leaf `RECEIVED + name` where
    there is one), z_p under the previous one (leaves `PREVIOUS + name`). Both are constants,
    computed in eval mode on statistics of their own. Source: MOON (Li et al., CVPR 2021),
    Algorithm 1; deviations: none.

    Attributes:
        names: the leaves of the net, buffers included.
        weight: factor of the term (mu).
        temperature: > 0, divides the cosines (tau).
        previous: prefix of the previous model's leaves.
        received: prefix of leaves that replace the received ones.
    """

    names: tuple[str, ...]
    weight: float | str = 1.0
    temperature: float = 0.5
    previous: str = "prev."
    received: str = "received."

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim, in nats: in (0, ...), ln 2 where both models are the same."""
        leaves, x = context.leaves, context.batch.x
        received: Tree = {n: leaves.get(self.received + n, context.start[n]) for n in self.names}
        previous: Tree = {n: leaves[self.previous + n] for n in self.names}
        with torch.no_grad():
            ahead = context.apply(received, x).features
            behind = context.apply(previous, x).features
        z = context.out.features
        gap = (_cosine(z, behind) - _cosine(z, ahead)) / self.temperature
        # -log(e_g / (e_g + e_p)) = log(1 + e^gap), without an exp that overflows.
        return masked_mean(torch.logaddexp(torch.zeros_like(gap), gap), context.batch.mask)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine [B] of row i of a [B, D] with row i of b; 0 with a zero row (C12)."""
    with full_precision(a):
        dtype = wide(a, b)
        return (unit(a.to(dtype)) * unit(b.to(dtype))).sum(dim=-1)
