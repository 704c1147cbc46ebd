"""Weights that sum to one, made from scores."""

import torch
from torch import Tensor

LEAST_SUM = 1e-12


def simplex(scores: Tensor, fallback: Tensor, dim: int) -> Tensor:
    """Return max(scores, 0), divided by its sum along one axis.

    Args:
        scores: Scores of any shape.
        fallback: Weights that are taken where no score is positive, such as weight 1 for the client
            itself or equal weights; broadcast to the shape of `scores`.
        dim: Axis along which the weights sum to one.

    Returns:
        Weights in [0, 1] of the shape of `scores`.

    >>> simplex(torch.tensor([[3.0, 1.0, -2.0], [-1.0, 0.0, 0.0]]), torch.eye(2, 3), dim=1)
    tensor([[0.7500, 0.2500, 0.0000],
            [0.0000, 1.0000, 0.0000]])
    """
    positive = scores.clamp_min(0.0)
    total = positive.sum(dim=dim, keepdim=True)
    return torch.where(total > LEAST_SUM, positive / total.clamp_min(LEAST_SUM), fallback)


def softmax_among(scores: Tensor, among: Tensor, dim: int) -> Tensor:
    """Return the softmax over some entries along one axis; the other entries have weight 0.

    Args:
        scores: Scores of any shape.
        among: Bool: the entries that take part; broadcast to the shape of `scores`. Where none
            along the axis takes part, all weights are 0.
        dim: Axis along which the weights sum to one.

    >>> softmax_among(torch.zeros(3), torch.tensor([True, True, False]), dim=0)
    tensor([0.5000, 0.5000, 0.0000])
    """
    weights = torch.where(among, scores, -torch.inf).softmax(dim=dim)
    return torch.where(among, weights, 0.0)
