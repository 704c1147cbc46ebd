"""SCAFFOLD: control variates against the drift of local steps (Karimireddy et al., ICML 2020)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.second import Second
from flbench.losses import CrossEntropy, Linear

# Prefixes of control variates, one per parameter
OWN = "c_i."  # the client's
ALL = "c."  # the server's, which is the mean of all clients'
CHANGE = "dc."  # the change of the client's in a round


@fl.ALGORITHMS.register("scaffold")
class Scaffold(fl.Algorithm):
    """Clients correct each local step by how much their gradient differs from the global one.

    Local steps (eq. 3): w_i <- w_i - eta (g - c_i + c), with the control variates c_i of the client
    and c of the server. After tau steps, with the learning rate eta of the round (eq. 4, the
    paper's option II): c_i+ = c_i - c + (w - w_i) / (tau eta); dc_i = c_i+ - c_i. Server (eq. 5):
    w <- w + server_lr mean(w_i - w), c <- c + |S|/N mean(dc_i). All variates start at 0, so the
    first round is that of FedAvg.

    The server sends w and c; a client sends w_i and dc_i and keeps c_i while it is absent. A client
    without an optimizer step changes nothing. The logged training loss contains <c - c_i, w>, whose
    gradient is the correction.

    Deviations: w_i is sent, not w_i - w, which has the same size. With `agg_weights=samples` both
    means are weighted by samples, so that c stays the weighted mean of all c_i. BatchNorm
    statistics are averaged and have no variate.
    """

    class Config(fl.UniformConfig):
        """Keys of SCAFFOLD."""

        server_lr: float = Field(
            1.0,
            gt=0,
            description="step of the server along the mean update (the paper's global learning"
            " rate)",
        )

    config: Config
    paper = fl.Paper(
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh",
        "ICML 2020",
    )
    communication = fl.Communication(
        down="w and c", up="w and dc", keeps="c_i: as many as the parameters"
    )
    needs = (fl.PLAIN_SGD, fl.KNOWN_RATE)

    @property
    def own(self) -> Second:
        """c_i, the client's control variates."""
        return Second(OWN, self.setting.net.parameters)

    @property
    def change(self) -> Second:
        """dc_i, their change in a round."""
        return Second(CHANGE, self.setting.net.parameters)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        zeros = {n: torch.zeros_like(start[n]) for n in self.setting.net.parameters}
        # c is a sum over all rounds, so it is stored in float64.
        server |= {ALL + name: value.double() for name, value in zeros.items()}
        return server, clients | fl.repeat(self.own.start(zeros), self.setting.clients)

    def terms(self) -> tuple[fl.LossTerm, ...]:
        names = self.setting.net.parameters
        # Linear adds c and -c_i to the gradient (eq. 3).
        return (CrossEntropy(), Linear(names, ALL), Linear(names, OWN, weight=-1.0))

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        steps = (
            self.phase(*self.terms()),
            fl.Transform(fl.bind(move, self.setting.net.parameters)),
        )
        return fl.LocalProgram(steps, keeps | self.own.leaves, sends | self.change.leaves)

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        net = super().dispatch(state, ids).shared.values
        names = self.setting.net.parameters
        c = {ALL + n: state.server[ALL + n].to(state.server[n].dtype) for n in names}
        # As long as c is 0 it need not be sent: outside a mask an entry is 0 and costs no bytes.
        mask = dict.fromkeys(c, torch.tensor(False)) if state.is_initial else {}
        return fl.Dispatch(fl.Message(net | c, mask))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        mean, weights = self.mean(results), self.weights(results)
        if not mean:  # no client made a step, so no variate changed either
            return fl.Update()
        names = self.setting.net.parameters

        # |S| / N, in samples if means are weighted by samples
        by_samples = self.config.agg_weights == "samples"
        total = float(self.setting.sizes.sum()) if by_samples else float(self.setting.clients)
        share = float(weights.sum()) / total

        # c <- c + |S|/N mean(dc_i)
        change = fl.weighted_mean(self.change.of(results.sent.values), weights)
        c = {ALL + n: state.server[ALL + n] + share * change[n].double() for n in names}

        # w <- w + server_lr mean(w_i - w); with server_lr 1 that is the mean itself
        if self.config.server_lr != 1:
            for name in names:
                old = state.server[name].double()
                step = self.config.server_lr * (mean[name].double() - old)
                mean[name] = (old + step).to(mean[name].dtype)

        norm = torch.cat([value.flatten() for value in c.values()]).norm()
        return fl.Update(mean | c, metrics={"control_norm": float(norm)})


def move(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return dc_i = (w - w_i) / (tau eta) - c, and c_i + dc_i; dc_i is 0 without a step."""
    leaves, start = context.leaves, context.start
    length = context.info.steps * context.info.lr  # tau eta
    moved = length > 0
    changed: fl.Tree = {}
    for n in names:
        gradient = (start[n] - leaves[n]) / torch.where(moved, length, 1.0)
        dc = torch.where(moved, gradient - context.ctx[ALL + n], 0.0)
        changed |= {CHANGE + n: dc, OWN + n: leaves[OWN + n] + dc}
    return changed
