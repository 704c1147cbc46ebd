"""Scores as weights that sum to one."""

import torch
from torch import Tensor


def simplex(scores: Tensor, fallback: Tensor, dim: int) -> Tensor:
    """Return scores without their negative part, divided by their sum along `dim` (C12).

    Args:
        scores: any shape.
        fallback: taken where nothing positive is left: all mass on self, or equal shares.
        dim: the axis along which weights sum to one.
    """
    positive = scores.clamp_min(0.0)
    total = positive.sum(dim=dim, keepdim=True)
    return torch.where(total > 1e-12, positive / total.clamp_min(1e-12), fallback)


def softmax_among(scores: Tensor, among: Tensor, dim: int) -> Tensor:
    """Return the softmax along `dim` over the entries where `among` is True, and 0 elsewhere."""
    weights = torch.where(among, scores, -torch.inf).softmax(dim=dim)
    return torch.where(among, weights, 0.0)
