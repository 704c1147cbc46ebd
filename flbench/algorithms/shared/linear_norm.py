"""A linear layer and a normalization of its outputs, for methods that add them to a net."""

import torch
from numpy.random import Generator
from torch import Tensor

from flbench.core.types import Tree


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
