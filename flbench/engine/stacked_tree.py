"""Named tensors of a block of clients: one tensor for all of them, or one row per client."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from flbench.core.types import Tree


@dataclass
class StackedTree:
    """Named tensors of a block of K clients.

    A tensor that is the same for all clients is stored once. All others are stacked: they have a
    leading axis [K], in the order of the clients.

    Attributes:
        shared: Tensors without a client axis, by name.
        stacked: Tensors [K, ...] by name.
        names: All names, in the order in which they were added.
    """

    shared: Tree = field(default_factory=dict)
    stacked: Tree = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def put(self, name: str, value: Tensor, *, stacked: bool) -> None:
        """Add or replace a tensor.

        Args:
            name: The tensor's name.
            value: [K, ...] if `stacked` is True, otherwise one tensor for all clients.
            stacked: Whether the tensor has a client axis.
        """
        self.shared.pop(name, None)
        self.stacked.pop(name, None)
        (self.stacked if stacked else self.shared)[name] = value
        if name not in self.names:
            self.names.append(name)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor, with or without the client axis [K]."""
        return self.stacked[name] if name in self.stacked else self.shared[name]

    def stack(self, names: Sequence[str], clients: int) -> None:
        """Give these tensors a client axis [K]; each client gets a copy of a shared tensor."""
        for name in names:
            if name in self.shared:
                value = self.shared.pop(name)
                self.stacked[name] = value.expand(
                    clients, *value.shape
                ).clone()  # [...] -> [K, ...]

    def make_writable(self, names: Sequence[str], clients: int) -> None:
        """Give these tensors a client axis [K] and memory of their own, to be written in place.

        Before, a stacked tensor may share memory with the client's start, or with what a Transform
        made of it.
        """
        for name in names:
            if name in self.stacked:
                # Contiguous, with the client axis first in memory: otherwise vmap's batch_norm
                # writes the running statistics to a copy.
                self.stacked[name] = self.stacked[name].clone(memory_format=torch.contiguous_format)
        self.stack(names, clients)

    def reorder(self, order: Tensor) -> None:
        """Put the clients in another order; `order` [K] has the old position of each client."""
        for name, value in self.stacked.items():
            self.stacked[name] = value[order]

    def copy(self) -> Self:
        """Return another StackedTree with the same tensors."""
        return type(self)(dict(self.shared), dict(self.stacked), list(self.names))
