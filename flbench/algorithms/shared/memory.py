"""A second set of values of a client's model, among its leaves under a prefix.

Where they are the client's own of last time, `met`, a bool leaf [], says whether there are any.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from flbench.algorithms.shared.prefixes import prefixed
from flbench.core.tree import only
from flbench.core.types import Info, Tree

MET = "met"


def unknown(start: Tree, prefix: str, names: Iterable[str]) -> Tree:
    """Return the rows of one client that has not taken part yet."""
    return prefixed(prefix, only(start, names)) | {MET: torch.tensor(False)}


@dataclass(frozen=True)
class Recall:
    """A Transform: who takes part for the first time remembers what it has received."""

    prefix: str
    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the remembered leaves."""
        return prefixed(self.prefix, Stored(self.prefix, self.names)(leaves, ctx))


@dataclass(frozen=True)
class Copy:
    """A Transform: copy the leaves as they are now."""

    prefix: str
    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the copies."""
        return prefixed(self.prefix, only(leaves, self.names))


@dataclass(frozen=True)
class Remember(Copy):
    """A Transform: remember the leaves as they are now, until next time."""

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the remembered leaves and `met`."""
        return super().__call__(leaves, start, ctx, info) | {MET: torch.ones_like(leaves[MET])}


@dataclass(frozen=True)
class Stored:
    """What a net is called with: the remembered leaves, and the received ones before there are any.

    Attributes:
        prefix: of the remembered leaves.
        names: those that are returned, under these names.
    """

    prefix: str
    names: tuple[str, ...]

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the leaves."""
        return {
            name: torch.where(leaves[MET], leaves[self.prefix + name], leaves[name])
            for name in self.names
        }
