"""FedProx: FedAvg with a proximal term in the local loss (Li et al., MLSys 2020)."""

from pydantic import Field

import flbench.algorithms as fl
from flbench.algorithms.fedavg import FedAvg
from flbench.losses import CrossEntropy, Proximal


@fl.ALGORITHMS.register("fedprox")
class FedProx(FedAvg):
    """FedAvg whose local loss pulls the parameters to the received ones.

    Local loss (eq. 2): cross entropy + mu/2 ||w - w_t||^2, where w_t are the received parameters;
    BatchNorm statistics do not enter the norm. With mu = 0 the method equals FedAvg to the bit.

    Deviation: every client trains for `train.local_epochs`; the partial work of slow clients (the
    paper's gamma-inexactness) is not part of the method.
    """

    class Config(FedAvg.Config):
        """Keys of FedProx."""

        mu: float = Field(
            0.01, ge=0, description="factor of the proximal term; the paper tunes over 0.001 to 1"
        )

    config: Config
    paper = fl.Paper(
        "Federated Optimization in Heterogeneous Networks",
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith",
        "MLSys 2020",
    )

    def terms(self) -> tuple[fl.LossTerm, ...]:
        """Return cross entropy and the term mu/2 ||w - w_t||^2 over the parameters of the net."""
        return (CrossEntropy(), Proximal(self.setting.net.parameters, weight=self.config.mu))
