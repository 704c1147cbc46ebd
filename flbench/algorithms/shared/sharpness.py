"""Sharpness-aware steps: the gradient where the loss is worst nearby."""

from dataclasses import dataclass

import torch

from flbench.client.program import GradFn
from flbench.core.types import Batch, Tree


@dataclass(frozen=True)
class Sharpness:
    """The gradient at u + rho g / ||g||, where g is the gradient at u; at u where g = 0.

    Source: Foret et al., ICLR 2021, eq. 2; the norm is over the trained leaves. BatchNorm in
    training mode counts a batch twice.

    Attributes:
        rho: radius, >= 0.
    """

    rho: float

    def __call__(self, grad: GradFn, parameters: Tree, batch: Batch, ctx: Tree) -> Tree:
        """Return the gradient that the optimiser sees."""
        g = grad(parameters, batch)
        norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
        scale = torch.where(norm > 0, self.rho / norm, 0.0)
        return grad({name: parameters[name] + scale * g[name] for name in parameters}, batch)
