"""DFedAvgM: DFedAvg with heavy-ball momentum in local training (Sun, Li, Wang, TPAMI 2023)."""

from dataclasses import replace
from typing import Any

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

    def phase(
        self,
        *terms: fl.LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
        **others: Any,
    ) -> fl.Phase:
        phase = super().phase(*terms, train=train, epochs=epochs, **others)
        # SGD with momentum, v <- theta v + g and y <- y - eta v, equals the formula above as long
        # as eta is constant, which it is within a round.
        heavy = phase.optimizer.model_copy(update={"momentum": self.config.theta})
        return replace(phase, optimizer=heavy)

    def requires(self) -> list[str]:
        unmet, optimizer = super().requires(), self.setting.train.optimizer
        if optimizer.name != "sgd":
            unmet.append(
                f"`algorithm.theta` is the momentum of SGD, but"
                f" train.optimizer.name={optimizer.name}. Set train.optimizer.name=sgd."
            )
        if optimizer.nesterov:
            unmet.append(
                "`algorithm.theta` is the momentum of SGD, not of Nesterov's method. Set"
                " train.optimizer.nesterov=false."
            )
        return unmet

    def notes(self) -> list[str]:
        notes = super().notes()
        if self.setting.train.optimizer.momentum:
            notes.append(f"algorithm.theta={self.config.theta} replaces train.optimizer.momentum.")
        return notes
