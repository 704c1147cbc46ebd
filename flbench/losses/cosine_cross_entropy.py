"""Cross entropy of scaled cosines between features and class directions."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import Context, Outputs
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import cosines


def cosine_logits(context: Context, directions: str, scale: str) -> Tensor:
    """Return the logits s z W^T [B, C], with features z scaled to length one.

    Args:
        context: The step; its features [B, D] are read. A zero feature has the logits 0.
        directions: Name of the leaf W [C, D] with rows of length one.
        scale: Name of the leaf s [].
    """
    return context.leaves[scale] * cosines(context.out.features, context.leaves[directions])


@dataclass(frozen=True)
class CosineCrossEntropy:
    """Mean over the batch of -log softmax(s z W^T)[label], in nats.

    z [B, D] are the features, scaled to length one.
    Source: FedNH (Dai et al., AAAI 2023); deviations: none.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        directions: Name of the leaf W [C, D] with rows of length one.
        scale: Name of the leaf s [], an inverse temperature.
    """

    weight: float | str = 1.0
    directions: str = "head.weight"
    scale: str = "scale"

    def __call__(self, context: Context) -> Tensor:
        """Return the mean cross entropy, 0-dim."""
        logits = cosine_logits(context, self.directions, self.scale)
        return mean_cross_entropy(logits, context.batch.y, context.batch.mask)

    def outputs(self, context: Context) -> Outputs:
        """Return the net's features, and the scaled cosines [B, C] as logits."""
        return context.out._replace(logits=cosine_logits(context, self.directions, self.scale))
