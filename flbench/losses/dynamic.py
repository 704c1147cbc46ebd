"""FedDyn's dynamic regularizer: a linear and a quadratic term with a strength per client."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flbench.core.types import Context
from flbench.losses.linear import Linear
from flbench.losses.proximal import Proximal


@dataclass(frozen=True)
class Dynamic:
    """a (<h, w> + 1/2 ||w - w_start||^2), with the gradient a (w - w_start + h).

    w are the named parameters and w_start their values at the beginning of the program. The
    strength a is the leaf `strength` []; the dual variable h of the client is in leaves
    `dual.NAME`, each with the shape of its parameter.
    Source: FedDyn (Acar et al., ICLR 2021), eq. 1, in the authors' scaled form: their gradient at
    the last local optimum is -a h; deviations: none.

    Attributes:
        of_parameters: The term reads parameters alone, not what the net computes.
        names: Names of the parameters, in order.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    of_parameters: ClassVar[bool] = True

    names: tuple[str, ...]
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        terms = Linear(self.names, "dual.")(context) + Proximal(self.names)(context)
        return context.leaves["strength"] * terms
