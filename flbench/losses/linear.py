"""A linear term: it adds a constant to the gradient (control variates)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import StepContext


@dataclass(frozen=True)
class Linear:
    """sum over the named parameters of <c, w>; its gradient is +c.

    c stands under `PREFIX + name` among the leaves or, failing that, in ctx. With weights +1 and -1
    on the server's and the client's variate it is SCAFFOLD's correction (Karimireddy et al., ICML
    2020, eq. 3); with weight -1 FedDyn's first-order term (Acar et al., ICLR 2021, eq. 1).

    Attributes:
        names: the parameters, in order.
        prefix: of the constants' names.
        weight: factor of the term.
    """

    names: tuple[str, ...]
    prefix: str
    weight: float | str = 1.0

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        parts = []
        for name in self.names:
            key = self.prefix + name
            constant = context.leaves[key] if key in context.leaves else context.ctx[key]
            parts.append((constant * context.leaves[name]).sum())
        return torch.stack(parts).sum()
