"""A linear term, which adds a constant to the gradient (control variates)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flbench.core.types import Context


@dataclass(frozen=True)
class Linear:
    """Sum over the named parameters w of <c, w>, with the gradient c.

    The constant c of a parameter has the parameter's shape and the name `PREFIX + NAME`. It is read
    from the leaves or, if no leaf has this name, from ctx.
    Source: with the weights 1 and -1 on the server's and the client's control variate, the
    correction of SCAFFOLD (Karimireddy et al., ICML 2020, eq. 3); with weight -1, the first-order
    term of FedDyn (Acar et al., ICLR 2021, eq. 1); deviations: none.

    Attributes:
        of_parameters: The term reads parameters alone, not what the net computes.
        names: Names of the parameters, in order.
        prefix: Prefix of the constants' names.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    of_parameters: ClassVar[bool] = True

    names: tuple[str, ...]
    prefix: str
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        parts = []
        for name in self.names:
            key = self.prefix + name
            constant = context.leaves[key] if key in context.leaves else context.ctx[key]
            parts.append((constant * context.leaves[name]).sum())
        return torch.stack(parts).sum()
