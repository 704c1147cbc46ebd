"""FedAdam: FedAvg with Adam at the server (Reddi et al., ICLR 2021)."""

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.server_optimizer import FedOpt, FedOptConfig


@fl.ALGORITHMS.register("fedadam")
class FedAdam(FedOpt):
    """The server takes the clients' mean change as a gradient, and makes a step of Adam.

    Clients train as in FedAvg. Server (Algorithm 2; delta, m and v have the shape of w):

        delta = sum_i p_i (w_i - w)                       p_i = n_i / sum_j n_j over the cohort
        m <- beta1 m + (1 - beta1) delta                  m = 0 before the first round
        v <- beta2 v + (1 - beta2) delta^2                v = tau^2 before the first round
        w <- w + server_lr m / (sqrt(v) + tau)

    m and v are stored in float64 and never leave the server. A step has no bias correction, as
    printed; the authors' code has one.

    The paper prints a uniform mean over the cohort (`agg_weights=uniform`); its experiments weight
    by samples, as the default does. `train.schedule` scales the clients' learning rate alone.

    Where the paper is silent: buffers of the net (BatchNorm statistics) are averaged as in FedAvg,
    because a step beyond the mean could make a variance negative. A round in which no client made
    an optimizer step changes neither w nor m nor v, and clients without a step do not enter delta.
    """

    class Config(FedOptConfig):
        """Keys of FedAdam."""

        beta1: float = Field(
            0.9, ge=0, lt=1, description="share of the old first moment in the new one"
        )
        beta2: float = Field(
            0.99, ge=0, lt=1, description="share of the old second moment in the new one"
        )

    config: Config

    def moments(self, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        c, square = self.config, delta.square()
        return c.beta1 * m + (1 - c.beta1) * delta, c.beta2 * v + (1 - c.beta2) * square
