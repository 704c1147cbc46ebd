"""DFedAvgM: DFedAvg with heavy-ball momentum in local training (Sun, Li, Wang, TPAMI 2023)."""

from pydantic import Field

import flbench.algorithms as fl
from flbench.algorithms.dfedavg import DFedAvg
from flbench.algorithms.shared.topology import GossipConfig


@fl.ALGORITHMS.register("dfedavgm")
class DFedAvgM(DFedAvg):
    """DFedAvg with momentum theta: y^{k+1} = y^k - eta g(y^k) + theta (y^k - y^{k-1}).

    Source: Algorithm 2. The momentum starts at zero in each round (y^{-1} = y^0), as in the paper.
    The learning rate eta is `train.optimizer.lr`; the paper's is 0.1.
    """

    class Config(GossipConfig):
        """Keys of DFedAvgM."""

        theta: float = Field(
            0.9,
            ge=0,
            lt=1,
            description="heavy-ball momentum of local SGD, in place of train.optimizer.momentum",
        )

    config: Config

    def steps(self) -> tuple[fl.Step, ...]:
        # SGD with momentum, v <- theta v + g and y <- y - eta v, equals the formula above as long
        # as eta is constant, which it is within a round.
        optimizer = self.setting.train.optimizer
        heavy = optimizer.model_copy(update={"momentum": self.config.theta})
        return (self.phase(*self.terms(), optimizer=heavy),)

    def requires(self) -> list[str]:
        unmet, optimizer = super().requires(), self.setting.train.optimizer
        if optimizer.name != "sgd" or optimizer.nesterov:
            unmet.append(
                "`algorithm.theta` is the momentum of SGD. Set train.optimizer.name=sgd and"
                " train.optimizer.nesterov=false."
            )
        return unmet
