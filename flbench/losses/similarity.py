"""Cosines, and sums over the batch by class, shared by the prototype terms and methods."""

import torch
from torch import Tensor

EPSILON = 1e-12
NEVER = -1e9  # a logit that takes no part: exp gives 0 and, unlike -inf, no NaN in the gradient


def unit(x: Tensor) -> Tensor:
    """Return x [..., D] divided by its norm; a zero vector stays zero (C12)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.clamp_min(EPSILON)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine [M, N] of every row of a [M, D] with every row of b [N, D]."""
    return unit(a) @ unit(b).T


def membership(y: Tensor, classes: int, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [B, C].

    1 where the sample is of the class and not masked (`F.one_hot` refuses vmap of grad).
    """
    return ((y[:, None] == torch.arange(classes, device=y.device)) & mask[:, None]).to(dtype)


def class_sums(features: Tensor, y: Tensor, classes: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of features by class [C, D] and the number of samples by class [C]."""
    members = membership(y, classes, mask, features.dtype)
    return members.T @ features, members.sum(dim=0)
