"""A second set of a client's leaves beside the first one: a personal model, a head, a mask.

>>> v = Second("v.", ("head.bias",))
>>> list(v.start({"head.bias": torch.zeros(2), "body.bias": torch.ones(2)}))
['v.head.bias']
"""

from dataclasses import dataclass

import torch

from flbench.client.program import Transform, bind
from flbench.core.types import Context, Tree

PARTICIPATED = "participated"  # [] bool: whether a client has a model of a last participation


@dataclass(frozen=True)
class Second:
    """Second values of some leaves: that of the leaf NAME is the leaf PREFIX + NAME.

    An instance is a function context -> tree for `Phase.weights` and `Deployment.weights`: the net
    is called with the second values.

    Attributes:
        prefix: Prefix of the second leaves.
        names: Names of the first ones, in order.
    """

    prefix: str
    names: tuple[str, ...]

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the second leaves, which a program keeps, sends or trains."""
        return frozenset(self.prefix + name for name in self.names)

    def start(self, first: Tree) -> Tree:
        """Return second leaves with the values of the first ones, such as for `init`."""
        return {self.prefix + name: first[name] for name in self.names}

    def of(self, leaves: Tree) -> Tree:
        """Return the second values under the names of the first ones."""
        return {name: leaves[self.prefix + name] for name in self.names}

    def copy(self) -> Transform:
        """Return a step that gives the second leaves the values that the first ones have then."""
        return Transform(bind(_copied, self))

    def __call__(self, context: Context) -> Tree:
        """Return what the net is called with."""
        return self.of(context.leaves)


@dataclass(frozen=True)
class LastModel(Second):
    """The client's leaves at the end of its last participation, which `copy` stores.

    For a client that has not taken part yet, the second values are the first ones.
    """

    @property
    def leaves(self) -> frozenset[str]:
        return super().leaves | {PARTICIPATED}

    def start(self, first: Tree) -> Tree:
        return super().start(first) | {PARTICIPATED: torch.tensor(False)}

    def of(self, leaves: Tree) -> Tree:
        return {
            name: torch.where(leaves[PARTICIPATED], value, leaves[name])
            for name, value in super().of(leaves).items()
        }

    def copy(self) -> Transform:
        return Transform(bind(_remembered, self))

    def recall(self) -> Transform:
        """Return a step for the beginning of a program.

        In a client's first participation it gives the second leaves the values that the client has
        received, so that the steps after it can read them.
        """
        return Transform(bind(_recalled, self))


def _copied(context: Context, second: Second) -> Tree:
    """Return second leaves with the values of the first ones."""
    return second.start(context.leaves)


def _remembered(context: Context, last: LastModel) -> Tree:
    """Return the leaves of a model that the client has from now on."""
    return last.start(context.leaves) | {
        PARTICIPATED: torch.ones_like(context.leaves[PARTICIPATED])
    }


def _recalled(context: Context, last: LastModel) -> Tree:
    """Return second leaves with the values that the net is called with."""
    return Second.start(last, last(context))
