"""Tensors of a block of clients by name: shared by all, or with a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from flbench.core.types import Tree


@dataclass
class Bundle:
    """Tensors by name: those of `shared` are the same for all clients, `rows` have an axis [B].

    Attributes:
        shared: of all clients.
        rows: of each client.
        names: all names, in the order in which they came.
    """

    shared: Tree = field(default_factory=dict)
    rows: Tree = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def put(self, name: str, value: Tensor, *, row: bool) -> None:
        """Set a tensor; it replaces what has that name."""
        self.shared.pop(name, None)
        self.rows.pop(name, None)
        (self.rows if row else self.shared)[name] = value
        if name not in self.names:
            self.names.append(name)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor, with or without an axis [B]."""
        return self.rows[name] if name in self.rows else self.shared[name]

    def spread(self, names: Sequence[str], clients: int) -> None:
        """Give each client a copy of its own of these tensors."""
        for name in names:
            if name in self.shared:
                value = self.shared.pop(name)
                self.rows[name] = value.expand(clients, *value.shape).clone()

    def separate(self, names: Sequence[str], clients: int) -> None:
        """Give each client copies of its own of these tensors, to be written in place.

        A row may lie in the same memory as the client's start, or as what a Transform made of it.
        """
        for name in names:
            if name in self.rows:
                # With the clients first in memory too: else vmap's batch_norm writes to a copy.
                self.rows[name] = self.rows[name].clone(memory_format=torch.contiguous_format)
        self.spread(names, clients)

    def reorder(self, order: Tensor) -> None:
        """Put the clients in another order."""
        for name, value in self.rows.items():
            self.rows[name] = value[order]

    def copy(self) -> Self:
        """Return a bundle with the same tensors."""
        return type(self)(dict(self.shared), dict(self.rows), list(self.names))
