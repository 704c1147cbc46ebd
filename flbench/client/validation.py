"""The `validation_step` of a LightningModule of the user, as a step after a local program."""

from dataclasses import dataclass

from flbench.client.program import Statistic
from flbench.core.types import Samples, StepContext, Tree


@dataclass(frozen=True)
class ValidationStep:
    """Stands for the module's own `validation_step` on a client's validation samples.

    An engine that trains one client after the other calls the module's hooks in its place. What
    the module logs there is logged as in the training, so there is no result.
    """

    def __call__(self, context: StepContext) -> Tree:
        """Return no tensors."""
        return {}


VALIDATION = Statistic("validation_step", ValidationStep(), samples=Samples("validation"))
"""The Statistic that an engine runs after the local program in evaluated rounds."""
