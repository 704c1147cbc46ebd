"""Cosines, and sums over a batch by class, for loss terms and methods with prototypes."""

import torch
from torch import Tensor

from flbench.losses.cross_entropy import masked_mean as masked_mean

EPSILON = 1e-12
"""Smallest norm that a vector is divided by."""
NEVER = -1e9
"""A logit with the probability 0. Unlike with -inf, no gradient becomes NaN."""


def unit(x: Tensor) -> Tensor:
    """Return x [..., D] divided by its norm over the last axis; a zero vector stays zero."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.clamp_min(EPSILON)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosines [M, L] of each row of a with each row of b.

    The result has the wider of the two types and at least float32, also under autocast.

    Args:
        a: [M, D].
        b: [L, D].

    >>> cosines(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))
    tensor([[1., 0., 0.]])
    """
    with full_precision(a):
        dtype = wide(a, b)
        return unit(a.to(dtype)) @ unit(b.to(dtype)).T


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context that switches autocast off on the device of x.

    Sums need this: with the 8 bits of mantissa of bfloat16, 300 + 1 is 300.
    """
    return torch.autocast(x.device.type, enabled=False)


def wide(*tensors: Tensor) -> torch.dtype:
    """Return float64 if one of the tensors has it, and float32 otherwise."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def membership(y: Tensor, classes: int, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [B, C] with 1 where a sample is of a class and `mask` is True, and 0 elsewhere."""
    # Not `F.one_hot`, which does not work under `torch.vmap` of `torch.func.grad`.
    return ((y[:, None] == torch.arange(classes, device=y.device)) & mask[:, None]).to(dtype)


def class_sums(features: Tensor, y: Tensor, classes: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of features by class [C, D] and the numbers of samples by class [C].

    The results have at least float32, also under autocast.

    Args:
        features: [B, D].
        y: [B] int64 labels in [0, C).
        classes: The number of classes C.
        mask: [B] bool; rows where it is False do not count.
    """
    with full_precision(features):
        dtype = wide(features)
        members = membership(y, classes, mask, dtype)  # [B, C]
        return members.T @ features.to(dtype), members.sum(dim=0)  # [C, D], [C]
