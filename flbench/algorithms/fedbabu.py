"""FedBABU: the body is trained against a head that never moves (Oh, Kim and Yun, ICLR 2022)."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import AlgorithmConfig, epochs
from flbench.core.types import State


class FedBABUConfig(AlgorithmConfig):
    """Keys of FedBABU."""

    finetune_epochs: int = epochs(
        5, "local fine-tuning before a model is evaluated, discarded afterwards"
    )
    finetune: Literal["all", "head", "backbone"] = Field("all", description="what is fine-tuned")
    evaluated: Literal["ft", "noft"] = Field(
        "ft",
        description="the model that counts: fine-tuned, which the paper is about, or body and"
        " initial head as they are; the other is evaluated beside it",
    )


@ALGORITHMS.register("fedbabu")
class FedBABU(Algorithm):
    """Clients train the body under the common initial head; each fine-tunes before it is evaluated.

    Source: Algorithm 1. The head is neither kept nor sent nor in an optimiser: the authors' code
    freezes it by a learning rate of 0. Deviation: means are by samples (the authors': uniform,
    `agg_weights=uniform`). `gm` is the averaged body under the initial head.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedBABUConfig
    config: FedBABUConfig
    paper = Paper(
        "FedBABU: Toward Enhanced Representation for Federated Image Classification",
        "Oh, Kim, Yun",
        "ICLR 2022",
    )
    communication = Communication(down="body", up="body", keeps="nothing")

    def requires(self) -> list[str]:
        if self.setting.net.names("backbone"):
            return []
        return ["the net has no layer below its head: nothing to train. Change `model.name`."]

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps, sends - self.setting.net.names("head")

    def program(self, state: State) -> LocalProgram:
        body = self.phase(*self.terms(), train=self.setting.net.names("backbone"))
        return LocalProgram((body,), *self.split())

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        deployments = super().deploy(state, ids)
        noft = deployments.pop("personal")
        ft = replace(noft, program=LocalProgram((self.tuning(),)))
        if self.config.evaluated == "ft":
            return {"personal": ft, "noft": noft, **deployments}
        return {"personal": noft, "ft": ft, **deployments}

    def tuning(self) -> Phase:
        """Return the fine-tuning of a model before it is evaluated."""
        train = self.setting.net.names(self.config.finetune)
        return self.phase(*self.terms(), train=train, epochs=self.config.finetune_epochs)
