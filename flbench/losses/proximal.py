"""Pull of the parameters towards their values at the beginning of the round."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flbench.core.types import StepContext


@dataclass(frozen=True)
class Proximal:
    """1/2 ||w - w_start||^2 over the named parameters; its gradient is w - w_start.

    Source: FedProx (Li et al., MLSys 2020), eq. 2; deviations: none. With a prefix it pulls a
    second model towards the first: v - w_start (Ditto, Li et al., ICML 2021).

    Attributes:
        names: the parameters, in order (a set has none, and sums depend on it).
        weight: factor of the term (mu).
        prefix: of the leaves that are pulled; those that pull have none.
        anchor: pull towards the values at the beginning of the program, or those of now.
    """

    names: tuple[str, ...]
    weight: float | str = 1.0
    prefix: str = ""
    anchor: Literal["start", "now"] = "start"

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        anchor = context.start if self.anchor == "start" else context.leaves
        parts = [
            (context.leaves[self.prefix + name] - anchor[name]).square().sum()
            for name in self.names
        ]
        return 0.5 * torch.stack(parts).sum()
