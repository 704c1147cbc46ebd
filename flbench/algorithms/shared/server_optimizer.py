"""The server of FedOpt: the clients' mean change as the gradient of an adaptive optimizer.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, ICLR 2021, Algorithm 2.
"""

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.config.schema import AlgorithmConfig
from flbench.core.types import Results, State, Tree, Update

M, V = "m.", "v."  # prefixes of the moments, which the server remembers

FEDOPT = Paper(
    "Adaptive Federated Optimization",
    "Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan",
    "ICLR 2021 (arXiv 2003.00295)",
)


class FedOptConfig(AlgorithmConfig):
    """Keys of methods with an adaptive optimizer at the server."""

    server_lr: float = Field(
        0.03, gt=0, description="learning rate of the server (eta of the paper)"
    )
    tau: float = Field(
        1e-3,
        gt=0,
        description="constant that is added to the root of the second moment; the larger it is, the"
        " less adaptive is the step",
    )
    v0: float | None = Field(
        None, ge=0, description="second moment before the first round (default: tau^2)"
    )


class FedOpt(Algorithm):
    """Base of FedAdagrad, FedAdam and FedYogi: w <- w + server_lr m / (sqrt(v) + tau)."""

    config: FedOptConfig
    paper = FEDOPT
    communication = Communication(down="w", up="w", keeps="nothing")

    def moments(self, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new moments of a parameter, float64; delta is the mean change of a round."""
        raise NotImplementedError

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        first = self.config.tau**2 if self.config.v0 is None else self.config.v0
        for name in self.setting.net.parameters:
            zero = torch.zeros_like(start[name], dtype=torch.float64)
            server[M + name], server[V + name] = zero, zero + first
        return server, clients

    def aggregate(self, state: State, results: Results) -> Update:
        change = self.mean(results)  # empty if no client made an optimizer step
        if not change:
            return Update()
        for name in self.setting.net.parameters:
            old = state.server[name].double()
            delta = change[name].double() - old  # the weighted mean of w_k - w
            m, v = self.moments(state.server[M + name], state.server[V + name], delta)
            new = old + self.config.server_lr * m / (v.sqrt() + self.config.tau)
            change |= {M + name: m, V + name: v, name: new.to(change[name].dtype)}
        return Update(change)
