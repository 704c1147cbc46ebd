"""Cross entropy of cosines between features and class directions."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import cosines


def cosine_logits(context: StepContext, directions: str, scale: str) -> Tensor:
    """Return s z W^T [B, C] for features z of length one; a zero feature has logits 0.

    Args:
        context: its features [B, D].
        directions: the leaf W [C, D], rows of length one.
        scale: the leaf s [].
    """
    return context.leaves[scale] * cosines(context.out.features, context.leaves[directions])


@dataclass(frozen=True)
class CosineCrossEntropy:
    """Mean over the batch of -log softmax(s <z, W>)[label], in nats.

    Source: FedNH (Dai et al., AAAI 2023); deviations: none.

    Attributes:
        weight: factor of the term.
        directions: leaf W [C, D], rows of length one.
        scale: leaf s [], an inverse temperature.
    """

    weight: float | str = 1.0
    directions: str = "head.weight"
    scale: str = "scale"

    def __call__(self, context: StepContext) -> Tensor:
        """Return the mean cross entropy, 0-dim."""
        logits = cosine_logits(context, self.directions, self.scale)
        return mean_cross_entropy(logits, context.batch.y, context.batch.mask)
