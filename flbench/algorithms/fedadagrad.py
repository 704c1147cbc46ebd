"""FedAdagrad: FedAvg with Adagrad at the server (Reddi et al., ICLR 2021)."""

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.server_optimizer import FedOpt, FedOptConfig


@fl.ALGORITHMS.register("fedadagrad")
class FedAdagrad(FedOpt):
    """FedAdam with the sum of all squared changes as second moment: v <- v + delta^2.

    The step (Algorithm 2) is w <- w + server_lr m / (sqrt(v) + tau), with m = delta: beta1 = 0, as
    in the paper's experiments. v never falls, so that one round with a large change makes all later
    steps small. Everything else is FedAdam, whose documentation describes readings.
    """

    class Config(FedOptConfig):
        """Keys of FedAdagrad."""

        server_lr: float = Field(
            0.1, gt=0, description="learning rate of the server (eta of the paper)"
        )

    config: Config

    def moments(self, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return delta, v + delta.square()
