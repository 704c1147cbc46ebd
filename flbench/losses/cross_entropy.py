"""Cross entropy of the net's logits."""

from dataclasses import dataclass

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
        # In two steps, where vmap would take `F.cross_entropy` apart in Python.
        logarithms = view.out.logits.log_softmax(dim=1)
        losses = -logarithms.gather(1, view.batch.y[:, None])[:, 0]
        return masked_mean(losses, view.batch.mask)
