"""Cross entropy of the net's logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.similarity import masked_mean


def mean_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of -log softmax(logits)[label], 0-dim, for logits [B, C] and labels [B].

    Rows where mask [B] is False do not count.
    """
    # In two steps, where vmap would take `F.cross_entropy` apart in Python.
    logarithms = logits.log_softmax(dim=1)
    return masked_mean(-logarithms.gather(1, y[:, None])[:, 0], mask)


def sum_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of -log softmax(logits)[label], 0-dim; arguments as of the mean."""
    logarithms = logits.log_softmax(dim=1)
    return torch.where(mask, -logarithms.gather(1, y[:, None])[:, 0], 0.0).sum()


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over the batch of -log softmax(logits)[label], in nats.

    Attributes:
        weight: factor of the term.
    """

    weight: float | str = 1.0

    def __call__(self, context: StepContext) -> Tensor:
        """Return the mean cross entropy, 0-dim."""
        return mean_cross_entropy(context.out.logits, context.batch.y, context.batch.mask)
