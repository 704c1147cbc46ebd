"""The largest of some scores, chosen so that rounding decides nothing."""

import torch
from torch import Tensor

EQUAL = 256
"""Scores are equal whose relative difference is at most so many machine epsilons."""


def largest(scores: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return which scores are the largest, as a mask of the scores' shape.

    Sums in another order (another processor, another engine) change the last bits of a score.
    Scores that differ by rounding alone from the last one that is chosen are therefore equal to it,
    and of equal ones the first positions are chosen.

    Args:
        scores: Scores [..., n], without NaN.
        count: How many are chosen along the last axis, in 1..n.
        dtype: Type in which the scores were computed, if they were converted to a wider one since.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 2.0 + 1e-6]), 2)
    tensor([False,  True,  True, False])
    """
    least = scores.topk(count, dim=-1).values[..., -1:]
    rounding = EQUAL * torch.finfo(dtype or scores.dtype).eps * least.abs()
    rounding = torch.where(least.isfinite(), rounding, 0.0)
    above = scores > least + rounding
    equal = (scores >= least - rounding) & ~above
    return above | equal & (equal.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True))


def smallest_index(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the index of the smallest value along the last axis, of equal ones the first.

    Args:
        values: Values [..., n], without NaN.
        dtype: See `largest`.

    >>> smallest_index(torch.tensor([0.3, 0.1 + 1e-8, 0.1]))
    tensor(1)
    """
    return largest(-values, 1, dtype).int().argmax(dim=-1)
