"""Local-Only: every client trains alone; the reference for what a federation gains."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("local")
class LocalOnly(fl.Algorithm):
    """Every client trains a model of its own; nothing is sent.

    A client that is never part of a cohort keeps the seeded net; the run reports the number of such
    clients. With `budget=matched` a run does as many local trainings as a run of any other method.
    With `budget=full` it does 1 / `train.participation` times as many, so accuracies are not
    compared at equal cost.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of Local-Only."""

        budget: Literal["matched", "full"] = Field(
            "matched",
            description="who trains in a round: the cohort, as with the other methods, or all"
            " clients",
        )

    config: Config
    paper = fl.Paper("Local training without a federation", "-", "reference line")
    communication = fl.Communication(down="nothing", up="nothing", keeps="w")

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("all")

    def cohort(self, state: fl.State, draw: fl.Draw) -> Tensor:
        if self.config.budget == "full":
            return torch.arange(self.setting.clients)
        return super().cohort(state, draw)
