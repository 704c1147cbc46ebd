"""Squared distance of features from the prototype of their class."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import Context
from flbench.losses.similarity import masked_mean


@dataclass(frozen=True)
class PrototypeL2:
    """Mean over the batch of ||z_j - P[y_j]||^2 / D, over samples whose class has a prototype.

    z_j [D] is the feature of sample j and y_j its label.
    Source: FedProto (Tan et al., AAAI 2022), eq. 6, with the mean over the D elements of the
    authors' code. Deviation: in the authors' code the mean is over all samples of the batch, and a
    sample whose class has no prototype counts as zero.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
        prototypes: Name of the ctx entry P [C, D], the prototypes; constants.
        present: Name of the ctx entry [C] bool: classes that have a prototype.
    """

    weight: float | str = 1.0
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim; 0 if no sample's class has a prototype."""
        y = context.batch.y
        # [B, D] - [B, D] -> [B]
        distance = (context.out.features - context.ctx[self.prototypes][y]).square().mean(dim=1)
        return masked_mean(distance, context.ctx[self.present][y] & context.batch.mask)
