"""pFedMe: personal models as proximal points of the global one (Dinh, Tran, Nguyen, 2020)."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.memory import LastModel
from flbench.algorithms.shared.prefixes import prefixed_names

THETA = "theta."  # prefix of the personal model's leaves


@fl.ALGORITHMS.register("pfedme")
class PFedMe(fl.Algorithm):
    """A client trains a personal model near the global one, and moves the global one towards it.

    For each batch (Algorithm 1): theta ~ argmin CE(theta) + lam/2 ||theta - w||^2, then
    w <- w - eta lam (w - theta). Server: w <- (1 - beta) w + beta mean(w_i). The argmin is
    approximated by K gradient steps on the batch, from the theta of the batch before; the first
    theta of a round is the received w, as in the authors' code. eta is `train.optimizer.lr`; with
    lam 15 the authors take 0.005. A step costs K gradients; weight decay and clipping of `train.*`
    apply to the steps on theta. In the authors' code theta has a weight decay of 0.001,
    which the paper does not mention, and a round has 20 batches; here both are those of `train.*`.

    Clients send w_i and keep theta. A client is evaluated with the theta of its last participation,
    and with w before its first one; `gm` is w. BatchNorm statistics belong to theta; the server
    has their mean.

    Deviation: the authors train all clients in every round and average some; here only the cohort
    trains.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of pFedMe."""

        lam: float = Field(15.0, gt=0, description="factor of the pull between theta and w")
        inner_steps: int = Field(
            5, ge=1, description="number of gradient steps K on theta for each batch"
        )
        personal_lr: float = Field(
            0.09, gt=0, description="learning rate of theta; train.schedule scales it too"
        )
        beta: float = Field(
            1.0, gt=0, description="step of the server from its model to the clients' mean"
        )

    config: Config
    paper = fl.Paper(
        "Personalized Federated Learning with Moreau Envelopes",
        "Dinh, Tran, Nguyen",
        "NeurIPS 2020",
    )
    communication = fl.Communication(down="w", up="w", keeps="theta, as large as w")
    needs = (fl.PLAIN_SGD, fl.KNOWN_RATE)

    def notes(self) -> list[str]:
        c, lr, notes = self.config, self.setting.train.optimizer.lr, []
        if c.lam * lr >= 1:
            notes.append("pfedme: algorithm.lam * train.optimizer.lr >= 1: w overshoots theta.")
        if c.lam * c.personal_lr >= 2:
            notes.append("pfedme: algorithm.lam * algorithm.personal_lr >= 2: theta diverges.")
        return notes

    def theta(self) -> LastModel:
        """Return theta: its leaves are those that are sent, in the net's order."""
        sends = self.split()[1]
        return LastModel(THETA, tuple(name for name in self.setting.net.leaves if name in sends))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | self.theta().rows(start, self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        theta = self.theta()
        statistics = tuple(name for name in theta.names if name in self.setting.net.statistics)
        steps = (
            theta.remember(),  # theta <- w
            self.training(),
            LastModel(THETA, statistics).remember(),  # the net's statistics moved with theta
        )
        return fl.LocalProgram(steps, keeps | theta.kept(), sends)

    def training(self) -> fl.Phase:
        """Return the training of theta and w, whose steps the gradient hook `Envelope` makes."""
        names, train = self.setting.net.parameters, self.setting.train
        trained = prefixed_names(THETA, names) | {*names}
        return replace(
            self.phase(*self.terms(), train=trained),
            optimizer=fl.OptimizerConfig(lr=1.0),
            clip=None,
            gradient=Envelope(names, self.config, train.optimizer, train.clip),
        )

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        factor = self.setting.train.schedule.lr_factor(state.round, self.setting.rounds)
        return replace(super().dispatch(state, ids), numbers={"factor": factor})

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        mean, beta = self.mean(results), self.config.beta
        if mean and beta != 1:
            for name in self.setting.net.parameters:
                old, new = state.server[name].double(), mean[name].double()
                mean[name] = ((1 - beta) * old + beta * new).to(mean[name].dtype)
        return fl.Update(mean)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        theta = Personal(self.setting.net.leaves, self.theta())
        return models | {"personal": replace(models["personal"], weights=theta)}


@dataclass(frozen=True)
class Envelope:
    """Gradient hook: K steps on theta, and what makes of them a step of SGD with learning rate 1.

    Attributes:
        names: Names of the net's parameters.
        config: Keys of pFedMe.
        optimizer: Optimizer of `train.*`: its learning rate acts on w, and its weight decay on
            theta.
        clip: Largest norm of the gradient of the cross entropy; None for no limit.
    """

    names: tuple[str, ...]
    config: "PFedMe.Config"
    optimizer: fl.OptimizerConfig
    clip: float | None

    def __call__(self, context: fl.Context, grad: fl.GradFn) -> fl.Tree:
        """Return the gradients of w and theta; `factor` in ctx is that of `train.schedule`."""
        trained = context.trained
        c, o, factor = self.config, self.optimizer, context.ctx["factor"]
        first = theta = {name: trained[THETA + name] for name in self.names}

        # theta <- theta - personal_lr (grad CE + decay theta + lam (theta - w)), K times
        for _ in range(c.inner_steps):
            g = grad(theta, context.batch)
            norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
            bound = 1.0 if self.clip is None else (self.clip / (norm + 1e-6)).clamp_max(1.0)
            moved: fl.Tree = {}
            for n, v in theta.items():
                slope = bound * g[n] + o.weight_decay * v + c.lam * (v - trained[n])
                moved[n] = v - factor * c.personal_lr * slope
            theta = moved

        # w <- w - eta lam (w - theta); the schedule scales the phase's learning rate of 1.
        pulled = {n: o.lr * c.lam * (trained[n] - v) for n, v in theta.items()}
        return pulled | {THETA + n: (first[n] - v) / factor for n, v in theta.items()}


@dataclass(frozen=True)
class Personal:
    """theta as context -> what the net is called with.

    Attributes:
        names: Names of the net's leaves.
        theta: The personal model; leaves that it lacks are the client's.
    """

    names: tuple[str, ...]
    theta: LastModel

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the net's leaves."""
        return {name: context.leaves[name] for name in self.names} | self.theta(context)
