"""FedYogi: FedAvg with Yogi at the server (Reddi et al., ICLR 2021)."""

from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.fedadam import FedAdam


@fl.ALGORITHMS.register("fedyogi")
class FedYogi(FedAdam):
    """FedAdam with Yogi's second moment, which changes by a bounded amount.

    v <- v - (1 - beta2) delta^2 sign(v - delta^2) (Algorithm 2). v therefore rises as that of Adam
    where delta^2 is larger than v, and falls by delta^2 instead of by v where it is smaller.
    Everything else is FedAdam, whose documentation describes readings and options.
    """

    def moments(self, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        c, square = self.config, delta.square()
        m = c.beta1 * m + (1 - c.beta1) * delta
        return m, v - (1 - c.beta2) * square * (v - square).sign()
