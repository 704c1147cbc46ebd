"""FedProx: FedAvg with a proximal pull to the received model (Li et al., MLSys 2020)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms.base import Paper
from flbench.algorithms.fedavg import FedAvg, FedAvgConfig
from flbench.algorithms.registry import ALGORITHMS
from flbench.client.program import LossTerm
from flbench.config.schema import AlgorithmConfig
from flbench.losses import CrossEntropy, Proximal


class FedProxConfig(FedAvgConfig):
    """Keys of FedProx."""

    mu: float = Field(
        0.01, ge=0, description="strength of the proximal pull; the paper tunes over 0.001 to 1"
    )


@ALGORITHMS.register("fedprox")
class FedProx(FedAvg):
    """Local loss: CE + mu/2 ||w - w_t||^2 over the parameters (eq. 2); the rest is FedAvg.

    Partial work of slow clients (the paper's gamma-inexactness) is not part of it. mu = 0 is
    FedAvg, bit for bit.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedProxConfig
    config: FedProxConfig
    paper = Paper(
        "Federated Optimization in Heterogeneous Networks",
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith",
        "MLSys 2020",
    )

    def terms(self) -> tuple[LossTerm, ...]:
        return (CrossEntropy(), Proximal(self.setting.net.parameters, weight=self.config.mu))
