"""A second, personal model v whose leaves stand beside those of the net, under a prefix."""

from dataclasses import dataclass
from typing import ClassVar

from flbench.algorithms.setting import Setting
from flbench.core.types import Context, Tree

V = "v."  # prefix of the personal model's leaves


@dataclass(frozen=True)
class PersonalModel:
    """The personal model v as context -> what the net is called with.

    Attributes:
        names: Names of the net's leaves, in order.
        own: Those of which v has its own; the others are the global model's.
        selects: True: leaves are returned as they are, so a call may have those of many clients.
    """

    names: tuple[str, ...]
    own: frozenset[str]
    selects: ClassVar[bool] = True

    def __call__(self, context: Context) -> Tree:
        """Return the values of v under the names of the net."""
        return {name: context.leaves[V + name if name in self.own else name] for name in self.names}

    def leaves(self) -> tuple[str, ...]:
        """Return the names of v's leaves, prefix included, in order."""
        return tuple(V + name for name in self.names if name in self.own)


def personal_model(setting: Setting) -> PersonalModel:
    """Return v. With `train.batchnorm=drop` it has no BatchNorm statistics of its own."""
    net, drops = setting.net, setting.train.batchnorm == "drop"
    own = net.names("all") - (net.statistics if drops else frozenset())
    return PersonalModel(net.leaves, own)
