"""The server of FedOpt: the clients' mean change as the gradient of an adaptive optimizer.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, ICLR 2021, Algorithm 2.
"""

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.config.schema import AlgorithmConfig
from flbench.core.types import Results, State, Tree, Update

M, V, STEPS = "m.", "v.", "server_steps"  # prefixes and name of what the server remembers

FEDOPT = Paper(
    "Adaptive Federated Optimization",
    "Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan",
    "ICLR 2021 (arXiv 2003.00295)",
)


class AdaptiveServerConfig(AlgorithmConfig):
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

    def first_v(self) -> float:
        """Return the second moment before the first round."""
        return self.tau**2 if self.v0 is None else self.v0


class MomentsConfig(AdaptiveServerConfig):
    """Keys of methods whose second moment forgets."""

    beta1: float = Field(
        0.9, ge=0, lt=1, description="share of the old first moment in the new one"
    )
    beta2: float = Field(
        0.99, ge=0, lt=1, description="share of the old second moment in the new one"
    )
    bias_correction: bool = Field(
        False,
        description="the step is multiplied by sqrt(1 - beta2^s) / (1 - beta1^s) in the s-th step"
        " of the server, and the second moment starts at 0, as in the authors' code; false: the"
        " algorithm that the paper prints",
    )

    def first_v(self) -> float:
        return 0.0 if self.bias_correction and self.v0 is None else super().first_v()


class AdaptiveServer(Algorithm):
    """Base of FedAdam, FedYogi and FedAdagrad; a subclass defines `second_moment`."""

    config: AdaptiveServerConfig
    paper = FEDOPT
    communication = Communication(down="w", up="w", keeps="nothing")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new second moment of a parameter, float64.

        Args:
            v: The old second moment.
            square: The squared mean change of the round, of the same shape.
        """
        raise NotImplementedError

    def first_moment(self, m: Tensor, delta: Tensor) -> Tensor:
        """Return the new first moment of a parameter, float64."""
        return delta

    def correction(self, step: int) -> float:
        """Return the factor on the server's step number `step`, counted from 1."""
        return 1.0

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        for name in self.setting.net.parameters:
            zero = torch.zeros_like(start[name], dtype=torch.float64)
            server[M + name], server[V + name] = zero, zero + self.config.first_v()
        return server | {STEPS: torch.tensor(0)}, clients

    def aggregate(self, state: State, results: Results) -> Update:
        change = self.mean(results)  # empty if no client made an optimizer step
        if not change:
            return Update()
        c, step = self.config, int(state.server[STEPS]) + 1
        rate = c.server_lr * self.correction(step)
        change[STEPS] = torch.tensor(step)

        for name in self.setting.net.parameters:
            old = state.server[name].double()
            delta = change[name].double() - old  # the weighted mean of w_k - w

            m = self.first_moment(state.server[M + name], delta)
            v = self.second_moment(state.server[V + name], delta.square())
            new = old + rate * m / (v.sqrt() + c.tau)

            change |= {M + name: m, V + name: v, name: new.to(change[name].dtype)}
        return Update(change)


class MomentsServer(AdaptiveServer):
    """Base of the two methods whose second moment forgets, FedAdam and FedYogi."""

    config: MomentsConfig

    def first_moment(self, m: Tensor, delta: Tensor) -> Tensor:
        return self.config.beta1 * m + (1 - self.config.beta1) * delta

    def correction(self, step: int) -> float:
        c = self.config
        return (1 - c.beta2**step) ** 0.5 / (1 - c.beta1**step) if c.bias_correction else 1.0
