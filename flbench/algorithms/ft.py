"""FedAvg-FT: FedAvg's global model, fine-tuned by each client (Wang et al., 2019).

This is the baseline that a personalized method must beat: every client of a federation can
fine-tune the global model on its own samples, whatever the method.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("ft")
class FineTuned(fl.Algorithm):
    """FedAvg, whose global model w each client fine-tunes on its own training samples.

    Training: FedAvg without a change. Deployment (`personal`): w after `finetune_epochs` epochs
    over the client's training samples, on the local loss and with the optimizer of `train.*`. With
    `finetune=head_first`, `head_epochs` epochs of the head alone come first, with the other layers
    and the running statistics of BatchNorm frozen (linear probing, then fine-tuning: Kumar et al.,
    ICLR 2022); `finetune_epochs=0` then trains the head alone. The phases have optimizers of their
    own. Fine-tuned models are discarded after the evaluation, so training does not depend on these
    keys, and no bytes are charged.

    `noft` and `gm` are w itself. Without an epoch of fine-tuning the method equals FedAvg to the
    bit. A comparison of personalized methods needs this baseline: FedAvg with fine-tuning learns
    shared features (Collins et al., NeurIPS 2022), and a method that does not exceed it adds
    nothing to what a client can do with the global model alone.

    The sources prescribe no number of epochs and no learning rate; the defaults are those of
    FedBABU's fine-tuning.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAvg-FT."""

        finetune: Literal["all", "head_first"] = Field(
            "all",
            description="layers that are fine-tuned: all, or the head alone and then all (linear"
            " probing, then fine-tuning)",
        )
        finetune_epochs: int = fl.epochs(
            5, "fine-tuning of all layers at each client before it is evaluated", ge=0
        )
        head_epochs: int = fl.epochs(
            5, "fine-tuning of the head alone, before all layers, with finetune=head_first", ge=0
        )
        finetune_lr: float | None = Field(
            None,
            gt=0,
            description="learning rate of fine-tuning; train.schedule scales it too (default:"
            " train.optimizer.lr)",
        )

    config: Config
    paper = fl.Paper(
        "Federated Evaluation of On-device Personalization",
        "Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage",
        "2019 (arXiv 1910.10252)",
    )
    communication = fl.Communication(down="w", up="w", keeps="nothing")

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        deployments = super().deploy(state, ids)
        phases = self.finetuning()
        if not phases:
            return deployments
        noft = deployments.pop("personal")
        ft = replace(noft, program=fl.LocalProgram(phases))
        return {"personal": ft, "noft": noft, **deployments}

    def finetuning(self) -> tuple[fl.Phase, ...]:
        """Return the phases of fine-tuning, in order; empty without an epoch."""
        c, optimizer, phases = self.config, self.setting.train.optimizer, list[fl.Phase]()
        if c.finetune_lr is not None:
            optimizer = optimizer.model_copy(update={"lr": c.finetune_lr})
        tuning = partial(self.phase, *self.terms(), optimizer=optimizer)
        if c.finetune == "head_first" and c.head_epochs:
            head = self.setting.net.names("head")
            phases.append(tuning(train=head, epochs=c.head_epochs, batchnorm="eval"))
        if c.finetune_epochs:
            phases.append(tuning(epochs=c.finetune_epochs))
        return tuple(phases)
