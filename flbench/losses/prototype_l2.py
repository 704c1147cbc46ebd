"""Pull of features towards the prototype of their class."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.similarity import masked_mean


@dataclass(frozen=True)
class PrototypeL2:
    """Mean over samples with a prototype of ||z_j - P[y_j]||^2 / D.

    Source: FedProto (Tan et al., AAAI 2022), eq. 6, with the mean over elements of the authors'
    code; deviations: none. Prototypes are constants.

    Attributes:
        weight: factor of the term.
        prototypes: ctx entry P [C, D].
        present: ctx entry [C] bool: the classes that have a prototype.
    """

    weight: float | str = 1.0
    prototypes: str = "global.prototypes"
    present: str = "global.present"

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim; 0 where no sample's class has a prototype."""
        y = context.batch.y
        distance = (context.out.features - context.ctx[self.prototypes][y]).square().mean(dim=1)
        return masked_mean(distance, context.ctx[self.present][y] & context.batch.mask)
