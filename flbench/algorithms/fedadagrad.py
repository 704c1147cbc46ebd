"""FedAdagrad: FedAvg with Adagrad at the server (Reddi et al., ICLR 2021)."""

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.server_optimizer import AdaptiveServer, AdaptiveServerConfig


@fl.ALGORITHMS.register("fedadagrad")
class FedAdagrad(AdaptiveServer):
    """FedAdam with the sum of all squared changes as second moment: v <- v + delta^2.

    The step (Algorithm 2) is w <- w + server_lr m / (sqrt(v) + tau), with m = delta: beta1 = 0, as
    in the paper's experiments. v never falls, so that one round with a large change makes all later
    steps small. Everything else is FedAdam, whose documentation describes readings.
    """

    class Config(AdaptiveServerConfig):
        """Keys of FedAdagrad."""

        server_lr: float = Field(
            0.1, gt=0, description="learning rate of the server (eta of the paper)"
        )

    config: Config

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
