"""The dynamic regulariser: a linear and a quadratic term whose strength is the client's own."""

from dataclasses import dataclass

from torch import Tensor

from flbench.core.types import StepContext
from flbench.losses.linear import Linear
from flbench.losses.proximal import Proximal


@dataclass(frozen=True)
class Dynamic:
    """a (<h, w> + 1/2 ||w - w_start||^2); its gradient is a (w - w_start + h).

    a stands in the leaf `strength` [], h (the client's dual) in leaves `dual.` + name. Source:
    FedDyn (Acar et al., ICLR 2021), eq. 1, in the authors' scaled form: their gradient of the last
    local optimum is -a h; deviations: none.

    Attributes:
        names: the parameters, in order.
        weight: factor of the term.
    """

    names: tuple[str, ...]
    weight: float | str = 1.0

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        terms = Linear(self.names, "dual.")(context) + Proximal(self.names)(context)
        return context.leaves["strength"] * terms
