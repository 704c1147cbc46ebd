"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019.
"""

import torch
from pydantic import Field

import flbench.algorithms as fl


@fl.ALGORITHMS.register("fedavgm")
class FedAvgM(fl.Algorithm):
    """Server: v <- beta v + delta, w <- w - server_lr (delta + beta v), delta the mean of w - w_k.

    The mean is weighted by the numbers of training samples. The momentum buffer v starts at zero,
    is stored in float64, and never leaves the server. With beta=0 and server_lr=1 the method is
    FedAvg.

    The paper prints the update w <- w - v (`nesterov=false`), and takes Nesterov's accelerated
    gradient in its experiments, with beta of 0.7 to 0.997 and a step of 1. Here that is the update
    above, the form of common optimizers such as PyTorch's SGD.

    Where the paper is silent: buffers of the net (BatchNorm statistics) are averaged as in FedAvg,
    because a step beyond the mean could make a variance negative. A round in which no client made
    an optimizer step changes neither w nor v.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAvgM."""

        beta: float = Field(
            0.9, ge=0, lt=1, description="momentum of the server (beta of the paper)"
        )
        nesterov: bool = Field(
            True,
            description="true: Nesterov momentum, as in the paper's experiments; false: the update"
            " that the paper prints",
        )
        server_lr: float = Field(1.0, gt=0, description="factor of the step of the server")

    config: Config
    paper = fl.Paper(
        "Measuring the Effects of Non-Identical Data Distribution for Federated Visual"
        " Classification",
        "Hsu, Qi, Brown",
        "2019 (arXiv 1909.06335)",
    )
    communication = fl.Communication(down="w", up="w", keeps="nothing")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        momentum = {
            f"momentum.{name}": torch.zeros_like(start[name], dtype=torch.float64)
            for name in self.setting.net.parameters
        }
        return server | momentum, clients

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        change = self.mean(results)  # empty if no client made an optimizer step

        for name in self.setting.net.parameters:
            if name not in change:
                continue
            old = state.server[name].double()
            delta = old - change[name].double()  # the weighted mean of w - w_k
            momentum = self.config.beta * state.server[f"momentum.{name}"] + delta

            step = delta + self.config.beta * momentum if self.config.nesterov else momentum

            change[f"momentum.{name}"] = momentum
            change[name] = (old - self.config.server_lr * step).to(change[name].dtype)
        return fl.Update(change)
