"""What the clients of an engine train with: net, samples, device and precision."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor, nn

from flbench.client.program import Phase
from flbench.config.schema import EngineConfig
from flbench.data.federation import Federation
from flbench.engine.base import dtype_of, open_device
from flbench.models import freezing
from flbench.models.base import net_leaves
from flbench.models.trial import write_back

AUTOCAST: Final = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Types of matrix products for values of `engine.precision`."""


class Environment:
    """Net, samples, device and precision, shared by all clients of an engine.

    Args:
        net: A copy of the seeded net, for this engine alone; it is moved to the device.
        federation: The samples of all clients; they are copied to the device.
        config: Device and precision.

    Attributes:
        net: The net, which no optimizer trains as long as no client does.
        device: Device of all tensors.
        dtype: Type of weights and inputs.
        autocast: Type of matrix products; None for `dtype`.
        own: The net's parameters and buffers by name (the tensors themselves).
        start: Their seeded values.
        buffers: Names of the net's buffers.
        federation: The samples, on the device.

    Raises:
        ConfigError: The device does not exist or cannot compute in that precision.
    """

    def __init__(self, net: nn.Module, federation: Federation, config: EngineConfig) -> None:
        self.device, self.dtype = open_device(config), dtype_of(config)
        self.autocast = AUTOCAST.get(config.precision)
        self.net = net.to(self.device, self.dtype).requires_grad_(False)
        self.own = net_leaves(self.net)
        self.start = {name: leaf.detach().clone() for name, leaf in self.own.items()}
        self.buffers = frozenset(name for name, _ in self.net.named_buffers())
        self.federation = federation.to(self.device, self.dtype)
        self._places = {name: _place(self.net, name) for name in self.buffers}
        self._has_batchnorm = freezing.trains_batchnorm(self.net)

    def skips_single(self, phase: Phase) -> bool:
        """Return whether batches of one sample are left out, on which BatchNorm cannot train."""
        return self._has_batchnorm and phase.batchnorm == "train"

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Return the context of a forward pass: new tensors have the type of the weights."""
        kind, before = self.autocast, torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with nullcontext() if kind is None else torch.autocast(self.device.type, kind):
                yield
        finally:
            torch.set_default_dtype(before)

    def write_back(self) -> None:
        """Copy buffers that the code of the net has assigned anew into the leaves."""
        for name, (buffers, key) in self._places.items():
            if (value := buffers[key]) is not (leaf := self.own[name]):
                write_back(name, leaf, value)
                buffers[key] = leaf


def _place(net: nn.Module, name: str) -> tuple[dict[str, Tensor | None], str]:
    """Return the dict of a module that holds a buffer of a net, and the buffer's key there."""
    path, _, key = name.rpartition(".")
    return net.get_submodule(path)._buffers, key
