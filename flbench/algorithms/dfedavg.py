"""DFedAvg: local SGD, then a mean over neighbours' models (Sun, Li, Wang, TPAMI 2023)."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from flbench.algorithms import ALGORITHMS, AlgorithmConfig, Communication, LossTerm, Paper, Phase
from flbench.algorithms.shared.gossip import Gossip, GossipConfig


class DFedAvgConfig(GossipConfig):
    """Keys of DFedAvg."""

    theta: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="heavy-ball momentum of local SGD, which replaces train.optimizer.momentum; 0"
        " takes train.optimizer as it is",
    )


@ALGORITHMS.register("dfedavg")
class DFedAvg(Gossip):
    """Clients run SGD with momentum and then average their models with those of neighbours.

    Local (Algorithms 1 and 2): y^{k+1} = y^k - eta g(y^k) + theta (y^k - y^{k-1}), from
    y^0 = y^{-1} = x_i. Then x_i <- sum_l w_il y_l over the neighbours l and i itself. The momentum
    starts at zero in each round, as in the paper. Models are evaluated after mixing, and before it
    as `personal@local`.

    Deviations: the paper's quantized variant is not part of the method. The paper requires a
    connected undirected network and weights that keep the mean, for example `topology=ring
    mixing=metropolis`; the default is random neighbours in each round, as in the experiments of
    later papers.
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
        # SGD with momentum, v <- theta v + g and y <- y - eta v, equals the formula above as long
        # as eta is constant, which it is within a round.
        heavy = phase.optimizer.model_copy(update={"momentum": self.config.theta})
        return replace(phase, optimizer=heavy)

    def requires(self) -> list[str]:
        unmet, optimizer = super().requires(), self.setting.train.optimizer
        if not self.config.theta:
            return unmet
        if optimizer.name != "sgd":
            unmet.append(
                f"`algorithm.theta` is the momentum of SGD, but"
                f" train.optimizer.name={optimizer.name}. Set train.optimizer.name=sgd or"
                f" algorithm.theta=0."
            )
        if optimizer.nesterov:
            unmet.append(
                "`algorithm.theta` is the momentum of SGD, not of Nesterov's method. Set"
                " train.optimizer.nesterov=false."
            )
        return unmet

    def notes(self) -> list[str]:
        notes = super().notes()
        c, train = self.config, self.setting.train
        if c.theta and train.optimizer.momentum:
            notes.append(f"algorithm.theta={c.theta} replaces train.optimizer.momentum.")

        n, shares_all = self.setting.clients, not self.split()[0]
        complete = n > 1 and self.topology.is_complete(self.setting.seed, n)
        if complete and train.participation == 1 and shares_all:
            notes.append("everyone mixes all models: this is FedAvg with agg_weights=uniform.")
        return notes
