"""FedALA: each client learns, entry by entry, how much of the global head to take (Zhang, 2023)."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import ala
from flbench.algorithms.shared.ala import OWN, WEIGHT
from flbench.algorithms.shared.memory import MET, Recall, Remember, Stored, unknown
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import LocalProgram, Phase, Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig, OptimizerConfig
from flbench.core.tree import repeat
from flbench.core.types import Samples, State, Tree
from flbench.losses import CrossEntropy


class FedAlaConfig(AlgorithmConfig):
    """Keys of FedALA."""

    tensors: int = Field(
        2, ge=1, description="parameter tensors (not layers) at the net's end that are mixed (p)"
    )
    eta: float = Field(1.0, ge=0, description="learning rate of the mixing weights")
    rand_percent: float = Field(
        80, gt=0, le=100, description="percentage of the samples that they are learnt from"
    )
    num_pre_loss: int = Field(
        10, ge=1, description="epochs whose losses must agree before the first learning ends"
    )
    threshold: float = Field(0.1, ge=0, description="largest standard deviation of those losses")
    max_epochs: int = Field(50, ge=1, description="most epochs of the first learning")
    evaluated: Literal["start", "stored"] = Field(
        "start",
        description="the model that is evaluated: the global one after mixing, before training, or"
        " the client's last own one",
    )


@ALGORITHMS.register("fedala")
class FedAla(Algorithm):
    """Start: theta <- theta_i + (w - theta_i) * W_i in the last p tensors, and w below; then CE.

    W_i <- clip(W_i - eta g (w - theta_i), 0, 1), g the gradient there, on a drawn part of the
    samples, body frozen (Algorithm 1): until the losses settle at the first participation with two
    different models, one epoch later. W_i starts at 1; with eta = 0 this is FedAvg, bit for bit.
    Evaluating mixes on a copy and writes nothing.

    Deviations: the losses that must settle are means of epochs (the authors: of each last batch);
    no more than `max_epochs`; BatchNorm in eval mode while W_i is learnt; `train.schedule` scales
    eta too. A client's training loss and steps include those of W_i.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedAlaConfig
    config: FedAlaConfig
    paper = Paper(
        "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
        "Zhang, Hua, Wang, Song, Xue, Ma, Guan",
        "AAAI 2023",
        "10.1609/aaai.v37i9.26330",
    )
    communication = Communication(down="w", up="w", keeps="its last p tensors, and as many weights")

    def requires(self) -> list[str]:
        most = len(self.setting.net.parameters)
        if self.config.tensors <= most:
            return []
        return [
            f"algorithm.tensors={self.config.tensors} is more than the net's {most} parameter"
            " tensors; take fewer."
        ]

    def notes(self) -> list[str]:
        if self.config.eta == 0 and self.config.evaluated == "start":
            return ["algorithm.eta=0: FedALA is FedAvg."]
        return []

    def top(self) -> tuple[str, ...]:
        """Return the parameters that are mixed."""
        return self.setting.net.parameters[-self.config.tensors :]

    def own(self) -> tuple[str, ...]:
        """Return the leaves of its last own model that a client keeps."""
        if self.config.evaluated == "start":  # the others are always overwritten
            return self.top()
        return self.setting.net.leaves

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        rows = unknown(start, OWN, self.own()) | {"settled": torch.tensor(False)}
        rows |= {WEIGHT + name: torch.ones_like(start[name]) for name in self.top()}
        return server, clients | repeat(rows, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        keeps |= {OWN + name for name in self.own()} | {WEIGHT + name for name in self.top()}
        after = estimated(self.setting) if self.config.evaluated == "stored" else ()
        train, remember = self.phase(*self.terms()), Transform(Remember(OWN, self.own()))
        steps = (*self.mixing(), train, *after, remember)
        return LocalProgram(steps, keeps | {MET, "settled"}, sends)

    def mixing(self) -> tuple[Step, ...]:
        """Return the steps that learn W_i and write the mixed model."""
        c, top = self.config, self.top()
        learn = Phase(
            frozenset(WEIGHT + name for name in top),
            (CrossEntropy(),),
            OptimizerConfig(name="sgd", lr=c.eta),
            epochs=c.max_epochs,
            weights=ala.Mixed(self.setting.net.leaves, top),
            project=ala.unit_interval,
            until=ala.Settled(c.num_pre_loss, c.threshold),
            batchnorm="eval",
            samples=Samples(high=c.rand_percent / 100, redraw="round"),
        )
        plan = Statistic(
            "ala", ala.nothing, finish=ala.Plan(top, c.max_epochs), samples=Samples(limit=1)
        )
        return (
            *estimated(self.setting),
            Transform(Recall(OWN, self.own())),
            plan,
            learn,
            Transform(ala.Mix(top)),
        )

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        deployments = super().deploy(state, ids)
        model = deployments["personal"]
        if self.config.evaluated == "start":
            program = LocalProgram((*self.mixing(), *estimated(self.setting)))
            deployments["personal"] = replace(model, program=program)
        else:
            deployments["personal"] = replace(model, weights=Stored(OWN, self.own()))
        return deployments
