"""What the clients of a sequential engine train with: net, samples, device and precision."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.core.lightning import Fabric
from flbench.core.types import Tree
from flbench.data.federation import Federation
from flbench.models.module_state import ModuleState


@dataclass(frozen=True)
class Environment:
    """Net, samples, device and precision, shared by all clients one after the other.

    Attributes:
        fabric: Lightning Fabric with the device and the precision.
        net: The net. It is filled with each client's values in turn.
        own: The net's parameters and buffers by name (the tensors themselves).
        start: Their seeded values.
        federation: The samples, on the device.
        dtype: Type of weights and inputs.
        has_batchnorm: Whether the net has BatchNorm in training mode, which cannot train on a batch
            of one sample.
        needs_two: Whether the net cannot train on a batch of one sample for another reason.
        scaler: The initial state of the loss scaler of `16-mixed`; empty for other precisions.
        state: What the net was before the first client, for a net that may remember more than
            parameters and buffers, or draw random numbers; None for other nets.
    """

    fabric: Fabric
    net: nn.Module
    own: Tree
    start: Tree
    federation: Federation
    dtype: torch.dtype
    has_batchnorm: bool
    needs_two: bool
    scaler: dict[str, Any]
    state: ModuleState | None

    @property
    def device(self) -> torch.device:
        """The device of the net and of the samples."""
        return self.fabric.device

    def write_back(self) -> None:
        """Copy buffers that the code of the net has assigned anew into the leaves."""
        if self.state is not None:
            self.state.write_back()

    def reset_scaler(self) -> None:
        """Reset the loss scaler, so that no client's scale depends on the client before it."""
        if self.scaler:
            self.fabric.strategy.precision.load_state_dict(self.scaler)

    def scale(self, loss: Tensor) -> Tensor:
        """Return a loss, multiplied by the loss scaler's factor where there is a scaler."""
        if not self.scaler:
            return loss
        precision: Any = self.fabric.strategy.precision
        scaled: Tensor = precision.scaler.scale(loss)
        return scaled
