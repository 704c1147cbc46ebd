"""Contrast of features with those of the received and of the client's previous model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Context, Tree
from flbench.losses.similarity import full_precision, masked_mean, unit, wide


@dataclass(frozen=True)
class ModelContrast:
    """Mean over the batch of -log(e_g / (e_g + e_p)), with e_k = exp(cos(z, z_k) / temperature).

    z [B, D] are the features of the model in training. z_g are those of the received model
    (`context.start`, or the leaf `received.NAME` if there is one), z_p those of the client's
    previous model (the leaves `prev.NAME`). z_g and z_p are constants, computed in eval mode
    with the BatchNorm statistics of their own models.
    Source: MOON (Li et al., CVPR 2021), Algorithm 1; deviations: none.

    Attributes:
        names: Names of the net's leaves, buffers included.
        weight: Factor of the term (mu): a number, or the name of a 0-dim ctx entry.
        temperature: Divisor of the cosines (tau), > 0.
    """

    names: tuple[str, ...]
    weight: float | str = 1.0
    temperature: float = 0.5

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim, in nats: > 0, and ln 2 if both models are the same."""
        leaves, x = context.leaves, context.batch.x
        received: Tree = {n: leaves.get(f"received.{n}", context.start[n]) for n in self.names}
        previous: Tree = {n: leaves[f"prev.{n}"] for n in self.names}
        with torch.no_grad():
            global_features = context.apply(received, x).features
            previous_features = context.apply(previous, x).features
        z = context.out.features
        gap = (_cosine(z, previous_features) - _cosine(z, global_features)) / self.temperature
        # -log(e_g / (e_g + e_p)) = log(1 + exp(gap)); logaddexp does not overflow.
        return masked_mean(torch.logaddexp(torch.zeros_like(gap), gap), context.batch.mask)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine [B] of each row of a [B, D] with the same row of b; 0 for a zero row."""
    with full_precision(a):
        dtype = wide(a, b)
        return (unit(a.to(dtype)) * unit(b.to(dtype))).sum(dim=-1)
