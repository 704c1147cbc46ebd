"""Copies of a client's model, stored among its leaves under a prefix.

`Copy` copies leaves once. `LastModel` is the whole pattern of a client that remembers its model
from one participation to the next: the rows that `init` makes, the names that a program keeps, the
steps that read and write them, and the function that evaluates the remembered model.
"""

from dataclasses import dataclass

import torch

from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
from flbench.client.program import Transform
from flbench.core.tree import only, repeat
from flbench.core.types import Context, Tree

PARTICIPATED = "participated"  # [] bool: whether the client has remembered a model yet


@dataclass(frozen=True)
class Copy:
    """Function of a Transform: copies leaves as they are now to the same names with a prefix.

    Attributes:
        prefix: Prefix of the copies.
        names: Names of the leaves that are copied.
    """

    prefix: str
    names: tuple[str, ...]

    def __call__(self, context: Context) -> Tree:
        """Return the copies."""
        return prefixed(self.prefix, only(context.leaves, self.names))


@dataclass(frozen=True)
class LastModel:
    """A model that a client remembers from its last participation.

    An instance can be called as context -> tree, which is what `Phase.weights` and
    `Deployment.weights` take: it returns the remembered leaves under the names of the net, and the
    present ones for a client that has not remembered a model yet.

    Attributes:
        prefix: Prefix of the remembered leaves.
        names: Names of the leaves that are remembered, without the prefix.
    """

    prefix: str
    names: tuple[str, ...]

    def rows(self, start: Tree, clients: int) -> Tree:
        """Return the clients' rows before the first round, [N, ...] each, for `init`.

        Args:
            start: Leaves of the seeded net, without a client axis.
            clients: Number of clients N.
        """
        remembered = prefixed(self.prefix, only(start, self.names))
        return repeat(remembered | {PARTICIPATED: torch.tensor(False)}, clients)

    def kept(self) -> frozenset[str]:
        """Return the names of the leaves that a program must keep."""
        return prefixed_names(self.prefix, self.names) | {PARTICIPATED}

    def recall(self) -> Transform:
        """Return a step for the beginning of a program.

        After it, the remembered leaves of a client that takes part for the first time are those
        that the client has received. For other clients nothing changes.
        """
        return Transform(_Recall(self))

    def remember(self) -> Transform:
        """Return a step that remembers the leaves as they are now."""
        return Transform(_Remember(self.prefix, self.names))

    def __call__(self, context: Context) -> Tree:
        """Return the remembered leaves, without the prefix."""
        leaves = context.leaves
        return {
            name: torch.where(leaves[PARTICIPATED], leaves[self.prefix + name], leaves[name])
            for name in self.names
        }


@dataclass(frozen=True)
class _Recall:
    """Function of a Transform: see `LastModel.recall`."""

    model: LastModel

    def __call__(self, context: Context) -> Tree:
        return prefixed(self.model.prefix, self.model(context))


@dataclass(frozen=True)
class _Remember(Copy):
    """Function of a Transform: see `LastModel.remember`."""

    def __call__(self, context: Context) -> Tree:
        copies = super().__call__(context)
        return copies | {PARTICIPATED: torch.ones_like(context.leaves[PARTICIPATED])}
