"""DFedAvg: local SGD, then averaging with neighbours (Sun, Li, Wang, TPAMI 2023)."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from flbench.algorithms.base import Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.gossip import Gossip, GossipConfig
from flbench.client.program import LossTerm, Phase
from flbench.config.schema import AlgorithmConfig

MOMENTUM = "`algorithm.theta` is the momentum of SGD"


class DFedAvgConfig(GossipConfig):
    """Keys of DFedAvg."""

    theta: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="heavy ball of local SGD, instead of train.optimizer.momentum; 0 takes"
        " train.optimizer as it is",
    )


@ALGORITHMS.register("dfedavg")
class DFedAvg(Gossip):
    """Local: y^{k+1} = y^k - eta g(y^k) + theta (y^k - y^{k-1}) from y^0 = y^{-1} = x_i.

    Then x_i <- sum_l w_il y_l over the neighbours. Source: Algorithms 1 and 2.

    The momentum begins anew in each round, as the paper has it. Its quantized variant is not part
    of this. The paper wants a connected undirected network and weights that keep the mean:
    `topology=ring mixing=metropolis`, for example; the default is random neighbours in each round,
    as in the experiments of later papers. Models are evaluated after mixing; `personal@local` is
    before it.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DFedAvgConfig
    config: DFedAvgConfig
    paper = Paper(
        "Decentralized Federated Averaging",
        "Sun, Li, Wang",
        "IEEE TPAMI 45(4), 2023",
        "10.1109/TPAMI.2022.3196503",
    )
    communication = Communication(down="w of each neighbour", up="w to each neighbour", keeps="w")

    def phase(
        self,
        *terms: LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
    ) -> Phase:
        phase = super().phase(*terms, train=train, epochs=epochs)
        if not self.config.theta:
            return phase
        # SGD's v <- theta v + g, y <- y - eta v is the heavy ball while eta is constant, and it is
        # within a round.
        heavy = phase.optimizer.model_copy(update={"momentum": self.config.theta})
        return replace(phase, optimizer=heavy)

    def requires(self) -> list[str]:
        needs, optimizer = super().requires(), self.setting.train.optimizer
        if not self.config.theta:
            return needs
        if optimizer.name != "sgd":
            name = optimizer.name
            needs.append(f"{MOMENTUM}, but train.optimizer.name={name}. Take sgd, or theta=0.")
        if optimizer.nesterov:
            needs.append(f"{MOMENTUM}, not of Nesterov's. Leave train.optimizer.nesterov out.")
        return needs

    def notes(self) -> list[str]:
        said = super().notes()
        c, train = self.config, self.setting.train
        if c.theta and train.optimizer.momentum:
            said.append(f"algorithm.theta={c.theta} replaces train.optimizer.momentum.")
        n, shares_all = self.setting.clients, not self.split()[0]
        everyone = n > 1 and self.topology.is_complete(self.setting.seed, n)
        if everyone and train.participation == 1 and shares_all:
            said.append("everyone mixes all models: this is FedAvg with agg_weights=uniform.")
        return said
