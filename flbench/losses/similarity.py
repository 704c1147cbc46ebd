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
    """Return the cosine [M, N] of every row of a [M, D] with every row of b [N, D].

    In the wider of the two types and at least in float32, also under autocast.
    """
    with full_precision(a):
        dtype = wide(a, b)
        return unit(a.to(dtype)) @ unit(b.to(dtype)).T


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context without autocast: 8 bits of mantissa count 300 where there are 301."""
    return torch.autocast(x.device.type, enabled=False)


def wide(*tensors: Tensor) -> torch.dtype:
    """Return float32, or float64 where one of the tensors has it."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values [B] where mask [B] is True, 0-dim; 0 where it never is."""
    count = mask.sum().clamp_min(1).to(values.dtype)
    return torch.where(mask, values, 0.0).sum() / count


def membership(y: Tensor, classes: int, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [B, C]: 1 where an unmasked sample is of the class.

    `F.one_hot` would refuse vmap of grad.
    """
    return ((y[:, None] == torch.arange(classes, device=y.device)) & mask[:, None]).to(dtype)


def class_sums(features: Tensor, y: Tensor, classes: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of features by class [C, D] and the number of samples by class [C].

    At least in float32, also under autocast.
    """
    with full_precision(features):
        dtype = wide(features)
        members = membership(y, classes, mask, dtype)
        return members.T @ features.to(dtype), members.sum(dim=0)
