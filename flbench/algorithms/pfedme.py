"""pFedMe: personal models as proximal points of the global one (Dinh, Tran, Nguyen, 2020)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.second import LastModel, Second

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

    @property
    def theta(self) -> LastModel:
        """The personal model: its leaves are those that are sent, in the net's order."""
        sends = self.split()[1]
        return LastModel(THETA, tuple(name for name in self.setting.net.leaves if name in sends))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | fl.repeat(self.theta.start(start), self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        net, train, theta = self.setting.net, self.setting.train, self.theta
        training = self.phase(
            *self.terms(),
            train=Second(THETA, net.parameters).leaves | {*net.parameters},
            optimizer=fl.OptimizerConfig(lr=1.0),
            clip=None,
            gradient=fl.bind(envelope, net.parameters, self.config, train.optimizer, train.clip),
        )
        statistics = tuple(name for name in theta.names if name in net.statistics)
        # theta <- w; the training; the net's statistics have moved with theta
        steps = (theta.copy(), training, Second(THETA, statistics).copy())
        return fl.LocalProgram(steps, keeps | theta.leaves, sends)

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
        return models | {"personal": replace(models["personal"], weights=self.theta)}


def envelope(
    context: fl.Context,
    grad: fl.GradFn,
    names: tuple[str, ...],
    config: PFedMe.Config,
    optimizer: fl.OptimizerConfig,
    clip: float | None,
) -> fl.Tree:
    """Take K steps on theta; return the gradients of w and theta, for SGD with learning rate 1.

    Args:
        context: Its ctx has `factor`, that of `train.schedule`.
        grad: The gradient of the cross entropy.
        names: Names of the net's parameters.
        config: Keys of pFedMe.
        optimizer: Optimizer of `train.*`: its learning rate acts on w, its weight decay on theta.
        clip: Largest norm of the gradient of the cross entropy; None for no limit.
    """
    trained, factor = context.trained, context.ctx["factor"]
    w, theta = fl.only(trained, names), Second(THETA, names).of(trained)
    first = theta

    # theta <- theta - personal_lr (grad CE + decay theta + lam (theta - w)), K times
    for _ in range(config.inner_steps):
        g = grad(theta, context.batch)
        norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
        bound = 1.0 if clip is None else (clip / (norm + 1e-6)).clamp_max(1.0)
        moved: fl.Tree = {}
        for n, v in theta.items():
            slope = bound * g[n] + optimizer.weight_decay * v + config.lam * (v - w[n])
            moved[n] = v - factor * config.personal_lr * slope
        theta = moved

    # w <- w - eta lam (w - theta); the schedule scales the phase's learning rate of 1.
    pulled = {n: optimizer.lr * config.lam * (w[n] - v) for n, v in theta.items()}
    return pulled | {THETA + n: (first[n] - v) / factor for n, v in theta.items()}
