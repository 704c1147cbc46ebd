"""Local-Only: every client trains alone; the reference for what a federation gains."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    Dispatch,
    Draw,
    Paper,
    Results,
    State,
    Update,
)


class LocalConfig(AlgorithmConfig):
    """Keys of Local-Only."""

    budget: Literal["matched", "full"] = Field(
        "matched",
        description="who trains in a round: the cohort, as with the other methods, or all clients",
    )


@ALGORITHMS.register("local")
class LocalOnly(Algorithm):
    """Every client trains a model of its own; nothing is sent.

    A client that is never part of a cohort keeps the seeded net; the run reports the number of such
    clients. With `budget=matched` a run does as many local trainings as a run of any other method.
    With `budget=full` it does 1 / `train.participation` times as many, so accuracies are not
    compared at equal cost.
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
        """Return an empty dispatch: the server sends nothing."""
        return Dispatch()

    def aggregate(self, state: State, results: Results) -> Update:
        return Update()
