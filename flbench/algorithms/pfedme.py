"""pFedMe: personal models as proximal points of the global one (Dinh, Tran, Nguyen, 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.memory import MET, Remember, Stored, unknown
from flbench.client.program import GradFn, LocalProgram, Phase, Transform
from flbench.config.schema import AlgorithmConfig, OptimizerConfig
from flbench.core.tree import repeat
from flbench.core.types import Batch, Dispatch, Results, State, Tree, Update

THETA = "theta."  # before a leaf's name: the personal model


class PFedMeConfig(AlgorithmConfig):
    """Keys of pFedMe."""

    lam: float = Field(15.0, gt=0, description="strength of the pull of theta to w")
    inner_steps: int = Field(5, ge=1, description="gradient steps K on theta for each batch")
    personal_lr: float = Field(
        0.09, gt=0, description="learning rate of theta; train.schedule acts on it too"
    )
    steps: int | None = Field(
        None, ge=1, description="local steps R on w (authors: 20; default: train.local_epochs)"
    )
    beta: float = Field(1.0, gt=0, description="step of the server towards the clients' mean")


@ALGORITHMS.register("pfedme")
class PFedMe(Algorithm):
    """Each batch: theta ~ argmin CE(theta) + lam/2 ||theta - w||^2; w <- w - eta lam (w - theta).

    Server: w <- (1 - beta) w + beta mean(w_i). Source: Algorithm 1; the argmin is K gradient steps
    on the batch from the last theta, which is the received w at first (the authors' code). eta is
    train.optimizer.lr: with lam 15 they take 0.005. A step costs K gradients, whose weight decay
    and clipping are those of train. theta is evaluated as the client's last participation left it, and
    w before there is one; `gm` is w. BatchNorm statistics are theta's; the server has their mean.

    Deviation: the authors train all clients and average a subset; here the cohort trains.
    """

    Config: ClassVar[type[AlgorithmConfig]] = PFedMeConfig
    config: PFedMeConfig
    paper = Paper(
        "Personalized Federated Learning with Moreau Envelopes",
        "Dinh, Tran, Nguyen",
        "NeurIPS 2020",
    )
    communication = Communication(down="w", up="w", keeps="theta, as large as w")

    def requires(self) -> list[str]:
        optimizer = self.setting.train.optimizer
        if optimizer.name == "sgd" and optimizer.momentum == 0:
            return []
        return ["it takes plain steps. Set train.optimizer.name=sgd, train.optimizer.momentum=0."]

    def notes(self) -> list[str]:
        c, lr, said = self.config, self.setting.train.optimizer.lr, []
        if c.lam * lr >= 1:
            said.append("pfedme: algorithm.lam * train.optimizer.lr >= 1: w overshoots theta.")
        if c.lam * c.personal_lr >= 2:
            said.append("pfedme: algorithm.lam * algorithm.personal_lr >= 2: theta diverges.")
        return said

    def leaves(self) -> tuple[str, ...]:
        """Return the leaves that theta has of its own: those that travel, in the net's order."""
        sends = self.split()[1]
        return tuple(name for name in self.setting.net.leaves if name in sends)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        own = unknown(start, THETA, self.leaves())
        return server, clients | repeat(own, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        net, names = self.setting.net, self.leaves()
        statistics = tuple(name for name in names if name in net.statistics)
        copy, last = Transform(Remember(THETA, names)), Transform(Remember(THETA, statistics))
        return LocalProgram(
            (copy, self.envelope(), last), keeps | {THETA + name for name in names} | {MET}, sends
        )

    def envelope(self) -> Phase:
        """Return the training of theta and w; its optimiser does what the gradient hook says."""
        names, train = self.setting.net.parameters, self.setting.train
        phase = self.phase(*self.terms(), train=frozenset((*names, *(THETA + n for n in names))))
        hook = Envelope(names, self.config, train.optimizer, train.clip)
        phase = replace(phase, optimizer=OptimizerConfig(lr=1.0), clip=None, gradient=hook)
        steps = self.config.steps
        return phase if steps is None else replace(phase, epochs=None, steps=steps)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        factor = self.setting.train.schedule.factor(state.round, self.setting.rounds)
        return replace(super().dispatch(state, ids), numbers={"factor": factor})

    def aggregate(self, state: State, results: Results) -> Update:
        mean, beta = self.mean(results), self.config.beta
        for name in self.setting.net.parameters if mean and beta != 1 else ():
            both = (1 - beta) * state.server[name].double() + beta * mean[name].double()
            mean[name] = both.to(mean[name].dtype)
        return Update(mean)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        models = super().deploy(state, ids)
        theta = Personal(self.setting.net.leaves, Stored(THETA, self.leaves()))
        return models | {"personal": replace(models["personal"], weights=theta)}


@dataclass(frozen=True)
class Envelope:
    """K steps on theta; SGD with learning rate 1 then makes of both what the paper says."""

    names: tuple[str, ...]
    config: PFedMeConfig
    optimizer: OptimizerConfig
    clip: float | None

    def __call__(self, grad: GradFn, parameters: Tree, batch: Batch, ctx: Tree) -> Tree:
        """Return the gradients of w and theta; `factor` in ctx is the schedule's."""
        c, o, factor = self.config, self.optimizer, ctx["factor"]
        first = theta = {name: parameters[THETA + name] for name in self.names}
        for _ in range(c.inner_steps):
            g, now, theta = grad(theta, batch), theta, {}
            norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
            bound = 1.0 if self.clip is None else (self.clip / (norm + 1e-6)).clamp_max(1.0)
            for n, v in now.items():
                slope = bound * g[n] + o.weight_decay * v + c.lam * (v - parameters[n])
                theta[n] = v - factor * c.personal_lr * slope
        pulled = {n: o.lr * c.lam * (parameters[n] - v) for n, v in theta.items()}
        return pulled | {THETA + n: (first[n] - v) / factor for n, v in theta.items()}


@dataclass(frozen=True)
class Personal:
    """What the net is called with to be theta: what theta does not have is the net's own."""

    names: tuple[str, ...]
    theta: Stored

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the net's leaves."""
        return {name: leaves[name] for name in self.names} | self.theta(leaves, ctx)
