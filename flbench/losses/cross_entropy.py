"""Cross entropy of the net's logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.losses.similarity import masked_mean
from flbench.types import View


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over the batch of -log softmax(logits)[label], in nats.

    Attributes:
        weight: factor of the term.
    """

    weight: float | str = 1.0

    def __call__(self, view: View) -> Tensor:
        """Return the mean cross entropy, 0-dim, for logits [B, C] and labels [B]."""
        losses = torch.nn.functional.cross_entropy(view.out.logits, view.batch.y, reduction="none")
        return masked_mean(losses, view.batch.mask)
