"""Pull of the parameters towards their values at the beginning of the round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.types import View


@dataclass(frozen=True)
class Proximal:
    """1/2 ||w - w_start||^2 over the named parameters; its gradient is w - w_start.

    Source: FedProx (Li et al., MLSys 2020), eq. 2; deviations: none.

    Attributes:
        names: the parameters, in order (a set has none, and sums depend on it).
        weight: factor of the term (mu).
    """

    names: tuple[str, ...]
    weight: float | str = 1.0

    def __call__(self, view: View) -> Tensor:
        """Return the term, 0-dim."""
        parts = [(view.leaves[name] - view.start[name]).square().sum() for name in self.names]
        return 0.5 * torch.stack(parts).sum()
