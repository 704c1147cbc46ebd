"""FedDyn: a dynamic regularizer makes local optima agree (Acar et al., ICLR 2021)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.second import Second
from flbench.losses import CrossEntropy, Linear, Proximal

DUAL = "dual."  # prefix of a client's dual h_i; on the server, of the mean of all h_i
MEAN = "mean."  # prefix of the mean of the round's models, wbar


@fl.ALGORITHMS.register("feddyn")
class FedDyn(fl.Algorithm):
    """Each client adds to its loss what makes its optimum agree with the global one.

    Local loss: cross entropy + a_i (<h_i, w> + 1/2 ||w - w_t||^2), where w_t is the received model,
    h_i the client's dual, and a_i = alpha (sum_j n_j) / (N n_i). After training
    h_i <- h_i + w_i - w_t. Server: wbar = mean of the round's w_i, w <- wbar + (1/N) sum of h_i
    over all N clients. Source: Algorithm 1, in the scaled form of the authors' code, where
    h_i = -(gradient at w_i) / a_i.

    The server sends w, and a client sends w_i and keeps h_i. The server needs no h_i: each upload
    tells it by how much one changed, and it stores the mean of all, absent clients included. wbar
    is evaluated, because w is an iterate of the dual method and can be a poor model. BatchNorm
    statistics are averaged and have no dual.

    The server's term has no alpha, so the method does not become FedAvg as alpha goes to 0. The
    authors clip gradients at norm 10 (`train.clip=10`). Deviation: the whole gradient is clipped
    here, and in their code all of it but a_i w.
    """

    class Config(fl.UniformConfig):
        """Keys of FedDyn."""

        alpha: float = Field(
            0.01, gt=0, description="factor of the regularizer (the paper: 0.1, 0.01 or 0.001)"
        )

    config: Config
    paper = fl.Paper(
        "Federated Learning Based on Dynamic Regularization",
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama",
        "ICLR 2021",
    )
    communication = fl.Communication(
        down="w", up="w", keeps="h_i: as many as the parameters, and a_i"
    )

    @property
    def dual(self) -> Second:
        """h_i at a client, and their mean h at the server."""
        return Second(DUAL, self.setting.net.parameters)

    @property
    def wbar(self) -> Second:
        """The mean of the round's models."""
        return Second(MEAN, tuple(sorted(self.split()[1])))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        duals = self.dual.start({name: torch.zeros_like(value) for name, value in start.items()})
        # The mean of the duals is a sum over all rounds, so it is stored in float64.
        h = {name: value.double() for name, value in duals.items()}

        sizes = self.setting.sizes.double()  # [N]
        strength = self.config.alpha * (sizes.mean() / sizes)  # a_i, [N]
        own = fl.repeat(duals, self.setting.clients)
        own["strength"] = strength.to(start[self.dual.names[0]].dtype)
        return server | self.wbar.start(server) | h, clients | own

    def terms(self) -> tuple[fl.LossTerm, ...]:
        pull = fl.bind(regularizer, self.setting.net.parameters)
        return (CrossEntropy(), fl.Term(1.0, pull, of_parameters=True))

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        steps = (self.phase(*self.terms()), fl.Transform(fl.bind(moved, self.dual)))
        return fl.LocalProgram(steps, keeps | self.dual.leaves | {"strength"}, sends)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        wbar = self.mean(results)
        if not wbar:  # no client made a step, so no dual changed either
            return fl.Update()

        server = wbar | self.wbar.start(wbar)
        for name in self.setting.net.parameters:
            # h <- h + (1/N) sum_i (w_i - w_t)
            total = torch.zeros_like(state.server[DUAL + name])
            for sent in results.sent.values[name]:
                total += (sent - state.server[name]).double()
            h = state.server[DUAL + name] + total / self.setting.clients
            # w <- wbar + h
            server |= {DUAL + name: h, name: (wbar[name].double() + h).to(wbar[name].dtype)}
        return fl.Update(server)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return super().deploy(replace(state, server=self.wbar.of(state.server)), ids)


def regularizer(context: fl.Context, names: tuple[str, ...]) -> Tensor:
    """Return a_i (<h_i, w> + 1/2 ||w - w_t||^2), 0-dim, with the gradient a_i (w - w_t + h_i)."""
    return context.leaves["strength"] * (Linear(names, DUAL)(context) + Proximal(names)(context))


def moved(context: fl.Context, dual: Second) -> fl.Tree:
    """Return h_i + w_i - w_t."""
    return dual.start(
        {
            name: h + (context.leaves[name] - context.start[name])
            for name, h in dual(context).items()
        }
    )
