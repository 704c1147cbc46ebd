"""Control variates against client drift: a client's follows its gradients."""

from dataclasses import dataclass

import torch

from flbench.core.types import Info, Tree

OWN, ALL, CHANGE = "c_i.", "c.", "dc."  # before a parameter's name


@dataclass(frozen=True)
class FollowSteps:
    """dc = (w_start - w) / (tau eta) - c, and c_i <- c_i + dc; 0 for a client without a step."""

    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return c_i and dc."""
        length = info.steps * info.lr
        moved = length > 0
        change: Tree = {}
        for name in self.names:
            gradient = (start[name] - leaves[name]) / torch.where(moved, length, 1.0)
            dc = torch.where(moved, gradient - ctx[ALL + name], 0.0)
            change |= {CHANGE + name: dc, OWN + name: leaves[OWN + name] + dc}
        return change


@dataclass(frozen=True)
class FollowGradient:
    """dc = g_i(w_start) - c_i, and c_i <- c_i + dc; 0 for a client without a step."""

    names: tuple[str, ...]
    decay: float

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return c_i and dc."""
        moved, count = info.steps * info.lr > 0, ctx["gradient.count"].clamp_min(1)
        change: Tree = {}
        for name in self.names:
            gradient = ctx[f"gradient.{name}"] / count + self.decay * start[name]
            dc = torch.where(moved, gradient - leaves[OWN + name], 0.0)
            change |= {CHANGE + name: dc, OWN + name: leaves[OWN + name] + dc}
        return change
