"""DFedAvgM: DFedAvg with heavy-ball momentum in local training (Sun, Li, Wang, TPAMI 2023)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms import ALGORITHMS, AlgorithmConfig
from flbench.algorithms.dfedavg import DFedAvg, DFedAvgConfig


class DFedAvgMConfig(DFedAvgConfig):
    """Keys of DFedAvgM."""

    theta: float = Field(
        0.9, ge=0, lt=1, description="heavy-ball momentum of local SGD; 0 is DFedAvg"
    )


@ALGORITHMS.register("dfedavgm")
class DFedAvgM(DFedAvg):
    """DFedAvg with momentum theta = 0.9: y^{k+1} = y^k - eta g(y^k) + theta (y^k - y^{k-1}).

    Source: Algorithm 2. The learning rate eta is `train.optimizer.lr`; the paper's is 0.1.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DFedAvgMConfig
    config: DFedAvgMConfig
