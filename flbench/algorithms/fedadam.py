"""FedAdam: FedAvg with Adam at the server (Reddi et al., ICLR 2021)."""

from typing import ClassVar

from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.server_optimizer import MomentsConfig, MomentsServer


@fl.ALGORITHMS.register("fedadam")
class FedAdam(MomentsServer):
    """The server takes the clients' mean change as a gradient, and makes a step of Adam.

    Clients train as in FedAvg. Server (Algorithm 2; delta, m and v have the shape of w):

        delta = sum_i p_i (w_i - w)                       p_i = n_i / sum_j n_j over the cohort
        m <- beta1 m + (1 - beta1) delta                  m = 0 before the first round
        v <- beta2 v + (1 - beta2) delta^2                v = tau^2 before the first round
        w <- w + server_lr m / (sqrt(v) + tau)

    m and v are stored in float64 and never leave the server. A step has no bias correction, as
    printed. With `bias_correction=true` it is that of the authors' code: v starts at 0, and the
    step is multiplied by sqrt(1 - beta2^s) / (1 - beta1^s) in the s-th step of the server; tau is
    not corrected.

    The paper prints a uniform mean over the cohort (`agg_weights=uniform`); its experiments weight
    by samples, as the default does. `train.schedule` scales the clients' learning rate alone.

    Where the paper is silent: buffers of the net (BatchNorm statistics) are averaged as in FedAvg,
    because a step beyond the mean could make a variance negative. A round in which no client made
    an optimizer step changes neither w nor m nor v, and clients without a step do not enter delta.
    """

    Config: ClassVar[type[fl.AlgorithmConfig]] = MomentsConfig
    config: MomentsConfig

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.config.beta2 * v + (1 - self.config.beta2) * square
