"""What clients work with on one device, one after the other."""

from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from flbench.core.types import Tree
from flbench.data.federation import Federation
from flbench.engine.traced import Traces


@dataclass(frozen=True)
class Workbench:
    """Net, samples and precision.

    Attributes:
        fabric: device and precision.
        net: the net that each client fills with its own values.
        own: the net's own tensors by name.
        start: their seeded values.
        federation: the samples, on the device.
        dtype: of weights and inputs.
        has_batchnorm: whether a batch of one sample must be skipped.
        scaler: the fresh state of 16-mixed's loss scaler; empty for other precisions.
        traces: of training steps and of what Statistics do.
    """

    fabric: Fabric
    net: nn.Module
    own: Tree
    start: Tree
    federation: Federation
    dtype: torch.dtype
    has_batchnorm: bool
    scaler: dict[str, Any]
    traces: Traces

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        return self.fabric.device

    def reset_scaler(self) -> None:
        """Give the next client a fresh loss scaler: it remembers, and clients must not."""
        if self.scaler:
            self.fabric.strategy.precision.load_state_dict(self.scaler)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss, times 16-mixed's factor."""
        if not self.scaler:
            return loss
        precision: Any = self.fabric.strategy.precision
        scaled: Tensor = precision.scaler.scale(loss)
        return scaled
