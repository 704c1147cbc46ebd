"""The loss of a LightningModule of the user."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import Context


@dataclass(frozen=True)
class TaskLoss:
    """What `training_step` of the user's LightningModule returns for the batch.

    It takes the place of a method's cross entropy. In the other terms of the phase, `context.out`
    are the inputs and outputs of the head in the same forward pass. Only engines that train one
    client after the other can compute the loss.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the module's loss, 0-dim."""
        return context.task_loss()
