"""The client's own class counts, which terms for rare classes read."""

from typing import Final

import torch
from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import wide

COUNTS: Final = "term_classes.counts"
"""Name of the ctx entry [C]: number of samples of each class in the client's own training part.

A Statistic at the client writes it before training; the server neither sends nor receives it."""


def class_counts(context: Context) -> Tensor:
    """Return the number n_k of the client's training samples of each class, [C], at least 1.

    A class of which the client has no training sample counts as one sample. The formulas of the
    papers contain log(n_k) and 1 / n_k, and are written for data sets that have every class. With
    n_k = 0 taken literally, an absent class would leave the softmax: no client without the class
    would ever lower its logit, so a personal head would keep the random weights of that class and
    predict it. One sample is the least that the formulas are defined for. An absent class is
    therefore taught as cross entropy teaches it, but no more than any class that the client has.

    Args:
        context: The step. The counts come from `context.ctx`, and their type from the logits: at
            least float32.
    """
    counts: Tensor = context.ctx[COUNTS]
    return counts.to(wide(context.out.logits)).clamp_min(1.0)


def log_prior(counts: Tensor) -> Tensor:
    """Return log(n_k / n), [C], with n = sum of n_k.

    Args:
        counts: [C], n_k > 0.

    Example:
        >>> log_prior(torch.tensor([1.0, 3.0])).exp()
        tensor([0.2500, 0.7500])
    """
    return torch.log(counts) - torch.log(counts.sum())
