"""FedBABU: the body is trained under a head that never changes (Oh, Kim and Yun, ICLR 2022)."""

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("fedbabu")
class FedBABU(fl.Algorithm):
    """Clients train the body under the common initial head, and fine-tune it for an evaluation.

    Source: Algorithm 1. Only the body is sent and averaged. The head is neither sent nor kept nor
    part of an optimizer, so momentum and weight decay cannot change it; the authors' code gives it
    a learning rate of 0. `gm` is the averaged body under the initial head.

    Deviation: the mean is weighted by samples; the authors' is uniform (`agg_weights=uniform`).
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedBABU."""

        finetune_epochs: int = fl.epochs(
            5, "fine-tuning of each client's model before it is evaluated, discarded afterwards"
        )
        finetune: Literal["all", "head", "backbone"] = Field(
            "all", description="layers that are fine-tuned"
        )
        evaluated: Literal["ft", "noft"] = Field(
            "ft",
            description="the model that is tuned and reported as `personal`: `ft` with fine-tuning"
            " (the paper's claim), `noft` without; the other one is evaluated beside it",
        )

    config: Config
    paper = fl.Paper(
        "FedBABU: Toward Enhanced Representation for Federated Image Classification",
        "Oh, Kim, Yun",
        "ICLR 2022",
    )
    communication = fl.Communication(down="body", up="body", keeps="nothing")
    needs = (fl.BODY,)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps, sends - self.setting.net.names("head")

    def program(self, state: fl.State) -> fl.LocalProgram:
        body = self.phase(*self.terms(), train=self.setting.net.names("backbone"))
        return fl.LocalProgram((body,), *self.split())

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        deployments = super().deploy(state, ids)
        noft = deployments.pop("personal")
        ft = replace(noft, program=fl.LocalProgram((self.tuning(),)))
        if self.config.evaluated == "ft":
            return {"personal": ft, "noft": noft, **deployments}
        return {"personal": noft, "ft": ft, **deployments}

    def tuning(self) -> fl.Phase:
        """Return the fine-tuning of a model before it is evaluated."""
        train = self.setting.net.names(self.config.finetune)
        return self.phase(*self.terms(), train=train, epochs=self.config.finetune_epochs)
