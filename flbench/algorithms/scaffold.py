"""SCAFFOLD: control variates against the drift of local steps (Karimireddy et al., ICML 2020)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.gradients import SampleGradient
from flbench.algorithms.shared.moments import estimated
from flbench.algorithms.shared.variates import ALL, CHANGE, OWN, FollowGradient, FollowSteps
from flbench.client.program import LocalProgram, LossTerm, Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat, weighted_mean
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update
from flbench.losses import CrossEntropy, Linear


class ScaffoldConfig(UniformConfig):
    """Keys of SCAFFOLD."""

    control: Literal["steps", "gradient"] = Field(
        "steps",
        description="c_i becomes the mean gradient of the client's steps (option II), or the"
        " gradient at w over all its samples, one pass more (option I)",
    )
    server_lr: float = Field(
        1.0, gt=0, description="step of the server along the mean update (the paper's global eta)"
    )


@ALGORITHMS.register("scaffold")
class Scaffold(Algorithm):
    """Local steps w_i <- w_i - eta (g - c_i + c) (eq. 3); then c_i and c follow the gradients.

    After tau steps c_i+ = c_i - c + (w - w_i) / (tau eta) (eq. 4, option II), with the round's eta,
    or c_i+ = g_i(w) over all samples, in eval mode (option I); dc_i = c_i+ - c_i. Server (eq. 5):
    w <- w + server_lr mean(w_i - w), c <- c + |S|/N mean(dc_i). Both start at 0, so the first round
    is FedAvg's. c_i never leaves the client and is kept while it is absent; a client without a step
    changes nothing. The logged loss holds <c - c_i, w>.

    Deviations: w_i travels and not w_i - w, which is as long. With `agg_weights=samples` both means
    are weighted, so that c stays the weighted mean of all c_i. BatchNorm statistics are averaged
    and have no variate. Option I adds weight decay, as the steps of option II hold it too.
    """

    Config: ClassVar[type[AlgorithmConfig]] = ScaffoldConfig
    config: ScaffoldConfig
    paper = Paper(
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh",
        "ICML 2020",
    )
    communication = Communication(
        down="w and c", up="w and dc", keeps="c_i: as many as the parameters"
    )

    def requires(self) -> list[str]:
        optimizer = self.setting.train.optimizer
        if optimizer.name == "sgd" and optimizer.momentum == 0:
            return []
        return [
            "eq. 3 and 4 are of plain SGD: c - c_i corrects its steps, and their sum is a sum of"
            " gradients. Set train.optimizer.name=sgd and train.optimizer.momentum=0."
        ]

    def notes(self) -> list[str]:
        if self.setting.train.clip is None:
            return []
        means = "are means of bounded ones" if self.config.control == "steps" else "are not bounded"
        return [
            f"scaffold: train.clip bounds the corrected gradient; the gradients in c_i {means}."
        ]

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        zeros = {n: torch.zeros_like(start[n]) for n in self.setting.net.parameters}
        # The server's is a long sum over rounds: in float64.
        server |= {ALL + name: value.double() for name, value in zeros.items()}
        own = {OWN + name: value for name, value in zeros.items()}
        return server, clients | repeat(own, self.setting.clients)

    def terms(self) -> tuple[LossTerm, ...]:
        names = self.setting.net.parameters
        return (CrossEntropy(), Linear(names, ALL), Linear(names, OWN, weight=-1.0))

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        names = self.setting.net.parameters
        look: list[Step] = []
        follow = Transform(FollowSteps(names))
        if self.config.control == "gradient":
            look = [*estimated(self.setting), Statistic("gradient", SampleGradient(names))]
            follow = Transform(FollowGradient(names, self.setting.train.optimizer.weight_decay))
        return LocalProgram(
            (*look, self.phase(*self.terms()), follow),
            keeps | {OWN + name for name in names},
            sends | {CHANGE + name for name in names},
        )

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        net = super().dispatch(state, ids).shared.values
        names = self.setting.net.parameters
        c = {ALL + n: state.server[ALL + n].to(state.server[n].dtype) for n in names}
        # Before anything moved c is 0, as all know: outside a mask it is that, and free.
        mask = dict.fromkeys(c, torch.tensor(False)) if state.is_initial else {}
        return Dispatch(Message(net | c, mask))

    def aggregate(self, state: State, results: Results) -> Update:
        mean, weights = self.mean(results), self.weights(results)
        if not mean:  # nobody made a step: no variate moved either
            return Update()
        samples = self.config.agg_weights == "samples"
        everybody = float(self.setting.sizes.sum()) if samples else float(self.setting.clients)
        share = float(weights.sum()) / everybody  # |S| / N
        changes = {CHANGE + name for name in self.setting.net.parameters}
        change = weighted_mean(only(results.sent.values, changes), weights)
        server: Tree = {}
        for name in self.setting.net.parameters:
            server[ALL + name] = state.server[ALL + name] + share * change[CHANGE + name].double()
            if self.config.server_lr != 1:
                old = state.server[name].double()
                step = self.config.server_lr * (mean[name].double() - old)
                mean[name] = (old + step).to(mean[name].dtype)
        norm = torch.cat([value.flatten() for value in server.values()]).norm()
        return Update(mean | server, metrics={"control_norm": float(norm)})
