"""Squared distance of parameters from their values at the beginning of the round."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from flbench.core.types import Context


@dataclass(frozen=True)
class Proximal:
    """1/2 ||w - w_start||^2 over the named parameters, with the gradient w - w_start.

    Source: FedProx (Li et al., MLSys 2020), eq. 2; deviations: none. With a prefix, w are the
    leaves of a second model and w_start those of the first, as in Ditto (Li et al., ICML 2021).

    Attributes:
        of_parameters: The term reads parameters alone, not what the net computes.
        names: Names of the parameters, in order: the rounding of the sum depends on it.
        weight: Factor of the term (mu): a number, or the name of a 0-dim ctx entry.
        prefix: Prefix of the names of w; w_start has no prefix.
        anchor: `start`: w_start are the values at the beginning of the program; `now`: the values
            in this step, whose gradient is then also part of the loss's gradient.

    Example:
        >>> from types import SimpleNamespace
        >>> leaves, start = {"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 1.0])}
        >>> Proximal(("w",))(SimpleNamespace(leaves=leaves, start=start))  # 1/2 (3 - 1)^2
        tensor(2.)
    """

    of_parameters: ClassVar[bool] = True

    names: tuple[str, ...]
    weight: float | str = 1.0
    prefix: str = ""
    anchor: Literal["start", "now"] = "start"

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        anchor = context.start if self.anchor == "start" else context.leaves
        parts = [
            (context.leaves[self.prefix + name] - anchor[name]).square().sum()
            for name in self.names
        ]
        return 0.5 * torch.stack(parts).sum()
