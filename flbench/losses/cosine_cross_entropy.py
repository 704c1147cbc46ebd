"""Cross entropy of cosines between features and class directions."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import View
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import cosines


def cosine_logits(view: View, directions: str, scale: str) -> Tensor:
    """Return s z W^T [B, C] for features z of length one; a zero feature has logits 0.

    Args:
        view: its features [B, D].
        directions: the leaf W [C, D], rows of length one.
        scale: the leaf s [].
    """
    return view.leaves[scale] * cosines(view.out.features, view.leaves[directions])


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

    def __call__(self, view: View) -> Tensor:
        """Return the mean cross entropy, 0-dim."""
        logits = cosine_logits(view, self.directions, self.scale)
        return mean_cross_entropy(logits, view.batch.y, view.batch.mask)
