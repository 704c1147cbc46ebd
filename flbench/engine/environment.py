"""What the clients of a sequential engine train with: net, samples, device and precision."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.core.lightning import Fabric
from flbench.core.types import Tree
from flbench.data.federation import Federation
from flbench.models.module_state import write_back


@dataclass(frozen=True)
class Environment:
    """Net, samples, device and precision, shared by all clients one after the other.

    Attributes:
        fabric: Lightning Fabric with the device and the precision.
        net: The net. It is filled with each client's values in turn.
        own: The net's parameters and buffers by name (the tensors themselves).
        start: Their seeded values.
        buffers: Where each buffer is: its name, and the dict of its module with its key there.
        federation: The samples, on the device.
        dtype: Type of weights and inputs.
        has_batchnorm: Whether the net has BatchNorm in training mode, which cannot train on a batch
            of one sample.
        needs_two: Whether the net cannot train on a batch of one sample for another reason.
        scaler: The initial state of the loss scaler of `16-mixed`; empty for other precisions.
        may_draw: Whether the net may draw random numbers in training.
    """

    fabric: Fabric
    net: nn.Module
    own: Tree
    start: Tree
    buffers: tuple[tuple[str, dict[str, Tensor | None], str], ...]
    federation: Federation
    dtype: torch.dtype
    has_batchnorm: bool
    needs_two: bool
    scaler: dict[str, Any]
    may_draw: bool

    @property
    def device(self) -> torch.device:
        """The device of the net and of the samples."""
        return self.fabric.device

    def write_back(self) -> None:
        """Copy buffers that the code of the net has assigned anew into the leaves."""
        for name, buffers, key in self.buffers:
            if (value := buffers[key]) is not (leaf := self.own[name]):
                write_back(name, leaf, value)
                buffers[key] = leaf

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
