"""Heads of one linear layer, for methods that call the head on features of their own."""

from dataclasses import dataclass
from typing import Self

import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn.functional import linear

from flbench.core.types import Tree
from flbench.models.base import NetSpec


@dataclass(frozen=True)
class LinearHead:
    """The head of a net as a function of leaves and features.

    Attributes:
        names: Names of its parameters: the weight [C, D], and the bias [C] if there is one.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, net: NetSpec) -> Self:
        """Return the head of a net that meets `LINEAR_HEAD`."""
        head = net.names("head")
        return cls(tuple(name for name in net.parameters if name in head))

    @property
    def weight(self) -> str:
        """Name of the weight."""
        return self.names[0]

    def __call__(self, leaves: Tree, features: Tensor, prefix: str = "") -> Tensor:
        """Return the logits [B, C] of features [B, D].

        Args:
            leaves: Tensors with the head's parameters.
            features: What the head is called on.
            prefix: Prefix of the names, for a second head.
        """
        return linear(features, *(leaves[prefix + name] for name in self.names))


def linear_norm(rng: Generator, name: str, inputs: int, outputs: int, like: Tensor) -> Tree:
    """Return a new linear layer NAME and the LayerNorm NAME.norm behind it.

    Args:
        rng: Draws the weight and then the bias, in float64, from PyTorch's ranges.
        name: Name of the layer.
        inputs: Width of its inputs.
        outputs: Width of its outputs.
        like: A tensor of the type of the leaves.
    """
    width = max(1, inputs) ** -0.5
    leaves = {
        f"{name}.weight": torch.from_numpy(rng.uniform(-width, width, (outputs, inputs))),
        f"{name}.bias": torch.from_numpy(rng.uniform(-width, width, outputs)),
        f"{name}.norm.weight": torch.ones(outputs),
        f"{name}.norm.bias": torch.zeros(outputs),
    }
    return {leaf: value.to(like.dtype) for leaf, value in leaves.items()}
