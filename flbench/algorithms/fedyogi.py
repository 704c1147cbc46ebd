"""FedYogi: FedAvg with Yogi at the server (Reddi et al., ICLR 2021)."""

from typing import ClassVar

from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.server_optimizer import MomentsConfig, MomentsServer


@fl.ALGORITHMS.register("fedyogi")
class FedYogi(MomentsServer):
    """FedAdam with Yogi's second moment, which changes by a bounded amount.

    v <- v - (1 - beta2) delta^2 sign(v - delta^2) (Algorithm 2). v therefore rises as that of Adam
    where delta^2 is larger than v, and falls by delta^2 instead of by v where it is smaller.
    Everything else is FedAdam, whose documentation describes readings and options.
    """

    Config: ClassVar[type[fl.AlgorithmConfig]] = MomentsConfig
    config: MomentsConfig

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.config.beta2) * square * (v - square).sign()
