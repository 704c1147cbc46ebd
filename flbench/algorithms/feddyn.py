"""FedDyn: local optima made to agree with the global one by duals (Acar et al., ICLR 2021)."""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.duals import DUAL, MoveDual
from flbench.algorithms.shared.prefixes import prefixed, stripped
from flbench.client.program import LocalProgram, Transform
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Results, State, Tree, Update
from flbench.losses import CrossEntropy, Dynamic

MEAN = "mean."  # before the names of wbar


class FedDynConfig(UniformConfig):
    """Keys of FedDyn."""

    alpha: float = Field(0.01, gt=0, description="of the regulariser (paper: 0.1, 0.01, 0.001)")
    adaptive: bool = Field(
        True, description="a client's own strength is alpha times mean samples over its samples"
    )


@ALGORITHMS.register("feddyn")
class FedDyn(Algorithm):
    """Local loss: CE + a_i (<h_i, w> + 1/2 ||w - w_t||^2), then h_i <- h_i + w_i - w_t.

    Server: wbar = mean of the round's w_i, w <- wbar + (1/N) sum over all N clients of h_i. Source:
    Algorithm 1 in the scaled form of the authors' code, where h_i = -(gradient at w_i) / a_i, and
    a_i = alpha (sum_j n_j) / (N n_i). The duals stay with the clients: each upload tells the server
    how far one moved, and it keeps the mean of all, absent clients included. wbar is evaluated: w is
    an iterate of the dual method. BatchNorm statistics are averaged and have no dual.

    The server's term has no alpha: as alpha goes to 0 this does not become FedAvg. Clipping
    belongs to the authors' recipe (`train.clip=10`); here it bounds the whole gradient, in their
    code all of it but a_i w.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedDynConfig
    config: FedDynConfig
    paper = Paper(
        "Federated Learning Based on Dynamic Regularization",
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama",
        "ICLR 2021",
    )
    communication = Communication(down="w", up="w", keeps="h_i: as many as the parameters, and a_i")

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        parameters = only(start, self.setting.net.parameters)
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        dual = prefixed(DUAL, zeros)
        # The server's is a long sum over rounds: in float64.
        server |= prefixed(MEAN, server)
        server |= {name: value.double() for name, value in dual.items()}
        sizes = self.setting.sizes.double()
        ratio = sizes.mean() / sizes if self.config.adaptive else torch.ones_like(sizes)
        own = {"strength": (self.config.alpha * ratio).to(next(iter(parameters.values())).dtype)}
        return server, clients | repeat(dual, self.setting.clients) | own

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        names = self.setting.net.parameters
        steps = (self.phase(CrossEntropy(), Dynamic(names)), Transform(MoveDual(names)))
        return LocalProgram(steps, keeps | {DUAL + name for name in names} | {"strength"}, sends)

    def aggregate(self, state: State, results: Results) -> Update:
        mean = self.mean(results)
        if not mean:  # nobody made a step: no dual moved either
            return Update()
        server = prefixed(MEAN, mean)
        for name in self.setting.net.parameters:
            total = torch.zeros_like(state.server[DUAL + name])
            for sent in results.sent.values[name]:
                total += (sent - state.server[name]).double()  # what the client added to h_i
            dual = state.server[DUAL + name] + total / self.setting.clients
            server[DUAL + name] = dual
            mean[name] = (mean[name].double() + dual).to(mean[name].dtype)
        return Update(server | mean)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        wbar = stripped(MEAN, state.server)
        return super().deploy(replace(state, server=wbar), ids)

    def notes(self) -> list[str]:
        said = "FedDyn's authors clip gradients at a norm of 10: train.clip=10."
        return [said] if self.setting.train.clip is None else []
