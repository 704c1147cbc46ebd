"""Local-Only: every client trains alone, the reference line of all papers of the field."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.config.schema import AlgorithmConfig
from flbench.core.rng import Draw
from flbench.core.types import Dispatch, Results, State, Update


class LocalConfig(AlgorithmConfig):
    """Keys of Local-Only."""

    budget: Literal["matched", "full"] = Field(
        "matched",
        description="train the clients of the round, as the other methods do, or all clients"
        " every round",
    )


@ALGORITHMS.register("local")
class LocalOnly(Algorithm):
    """Everything is personal; nothing travels.

    Clients that were never drawn stay at the start net; the run reports their number. `budget=full`
    trains 1/participation times more than the federated methods do (C18).
    """

    Config: ClassVar[type[AlgorithmConfig]] = LocalConfig
    config: LocalConfig
    paper = Paper("Local training without a federation", "-", "reference line")
    communication = Communication(down="nothing", up="nothing", keeps="w")

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("all")

    def cohort(self, state: State, draw: Draw) -> Tensor:
        if self.config.budget == "full":
            return torch.arange(self.setting.clients)
        return super().cohort(state, draw)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        return Dispatch()

    def aggregate(self, state: State, results: Results) -> Update:
        return Update()
