"""FedDBE: FedAvg whose clients keep a bias of the features (Zhang et al., NeurIPS 2023)."""

from dataclasses import replace
from math import ceil

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.losses.cross_entropy import CrossEntropy, ScoresCrossEntropy

BIAS = "prbm"  # e_i [D], the vector that a client adds to its features
COMMON = "consensus"  # zbar [D], the common mean, which a client receives once
MEAN = "mean_features"  # r_i [D], what a client sends in the set-up
RUNNING = "running"  # r [D], with mu < 1
PACE = "pace"  # mu / learning rate


@fl.ALGORITHMS.register("feddbe")
class FedDBE(fl.Algorithm):
    """The whole net is averaged; a personal vector e_i is added to the features of client i.

    The vector (PRBM, personalized representation bias memory) absorbs what is particular to the
    client, and a penalty (MR, mean regularization) draws the mean of the remaining features to a
    common mean zbar.

    Set-up, all clients, once: the epochs or steps of a round (`train.local_epochs` or
    `train.local_steps`) of cross entropy from the initial net, whose weights are then discarded.
    Client i sends r_i, the running mean of its features z in training, and zbar =
    sum_i (n_i / n) r_i.

    Client i in a round, one phase over the net and e_i; per batch, with no gradient through sg and
    r = 0 at the beginning of the round:

        m = mean of z over the batch
        r <- (1 - mu) sg(r) + mu m
        L = CE(head(z + e_i), y) + kappa (1 / D) (1 / 2) ||r - zbar||^2

    Server: net <- sum_i p_i net_i, with p_i = n_i / sum_j n_j. Evaluated: `personal` is head(z +
    e_i) with the newest net; `noprbm` is the same net without e_i on each client's samples, and
    `gm` on the common ones. A client that never took part has e_i = 0.

    Readings. The authors' code is taken: the factor 1 / 2, the same optimizer for e_i and the net,
    and the last full batch of the set-up as r_i with mu = 1. It drops incomplete batches; here they
    are trained on and enter the recursion, but r_i is read at the last full one (at the last
    one for a client without any). A client receives zbar with its first model, and is charged
    for it once. Deviations: `train.optimizer.weight_decay` acts on e_i too, where the authors
    have none; momentum and `train.clip` treat e_i and the net as one model. With mu < 1 the
    running mean is a leaf that plain SGD moves by exactly the recursion above, so that other
    optimizers are refused. Its term has the value 0 in the logged loss.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedDBE."""

        kappa: float = Field(
            50.0,
            ge=0,
            description="weight of the distance between the mean feature and the common mean; 0:"
            " there is no set-up",
        )
        mu: float = Field(
            1.0,
            gt=0,
            le=1,
            description="weight of a batch in the running mean of features; 1: the mean of the"
            " batch",
        )

    config: Config
    by_client = (("informed", (0,)),)
    paper = fl.Paper(
        "Eliminating Domain Bias for Federated Learning in Representation Space",
        "Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan",
        "NeurIPS 2023 (arXiv 2311.14975)",
    )
    communication = fl.Communication(
        down="w; once D numbers", up="w; once D numbers", keeps="2 vectors of D numbers"
    )
    needs = (fl.LINEAR_HEAD,)

    @property
    def runs(self) -> bool:
        """Whether the mean of features goes on from batch to batch."""
        return self.config.kappa > 0 and self.config.mu < 1

    def requires(self) -> list[str]:
        train, found = self.setting.train, super().requires()
        optimizer = train.optimizer
        is_plain = optimizer.name == "sgd" and not (optimizer.momentum or optimizer.weight_decay)
        if self.runs and not (is_plain and train.clip is None):
            found.append(
                f"algorithm.mu={self.config.mu:g} needs plain SGD (train.optimizer.name=sgd,"
                " momentum 0, weight_decay 0, and no train.clip), which moves the running mean. Set"
                " these keys, or algorithm.mu=1."
            )
        return found

    def stages(self) -> tuple[fl.Stage, ...]:
        setup = (fl.Stage("consensus", 1, setup=True),) if self.config.kappa else ()
        return (*setup, *super().stages())

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        zeros = start[self.setting.net.parameters[0]].new_zeros(self.setting.net.features)
        own = {BIAS: zeros}
        if self.config.kappa:
            own[COMMON] = zeros
            server[COMMON] = zeros
            server["informed"] = torch.zeros(self.setting.clients, dtype=torch.bool)
        return server, clients | fl.repeat(own, self.setting.clients)

    # Client

    def terms(self) -> tuple[fl.LossTerm, ...]:
        c = self.config
        entropy = ScoresCrossEntropy(scores=fl.bind(shifted, self.linear_head))
        pull = (fl.Term(c.kappa, fl.bind(distance_to_common_mean, c.mu)),) if c.kappa else ()
        move = (fl.Term(PACE, move_running_mean),) if self.runs else ()
        return (entropy, *pull, *move)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        keeps |= {BIAS, COMMON} if self.config.kappa else {BIAS}
        if self.stage(state).setup:
            return fl.LocalProgram(self.describe(), keeps, frozenset({MEAN}))
        begin: tuple[fl.Step, ...] = (fl.Transform(start_running),) if self.runs else ()
        moved = {BIAS, RUNNING} if self.runs else {BIAS}
        train = self.phase(*self.terms(), train=frozenset(self.setting.net.parameters) | moved)
        return fl.LocalProgram((*begin, train), keeps, sends)

    def describe(self) -> tuple[fl.Step, ...]:
        """Return the steps of the set-up: training, and the mean of features."""
        train = self.setting.train
        size = train.batch_size
        batches = ceil(int(self.setting.sizes.max()) / size)
        steps = train.local_steps or batches * train.epochs_of(self.config.name)
        finish = fl.bind(last_running_mean, self.config.mu, size)
        running = fl.Statistic("batches", fl.bind(batch_means, steps), finish=finish)
        phase = self.phase(CrossEntropy(), record=(running,))
        return (phase, fl.Transform(write_running_mean))

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        net = super().dispatch(state, ids)
        if not self.config.kappa or self.stage(state).setup:
            return net
        mean = state.server[COMMON].expand(len(ids), -1)
        rows = fl.Message({COMMON: mean}, {COMMON: ~state.server["informed"][ids]})
        numbers = {}
        if self.runs:
            train = self.setting.train
            rate = train.optimizer.lr * train.schedule.lr_factor(state.round, self.setting.rounds)
            numbers[PACE] = self.config.mu / rate if rate else 0.0
        return replace(net, rows=rows, numbers=numbers)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.stage(state).setup:
            mean = self.mean(results, {MEAN})
            return fl.Update({COMMON: mean[MEAN]} if mean else {})
        server = self.mean(results)
        if self.config.kappa:
            server["informed"] = state.server["informed"].index_fill(0, results.ids, True)
        return fl.Update(server)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        plain = fl.Deployment(super().dispatch(state, ids))
        personal = replace(plain, predict=fl.bind(shifted, self.linear_head))
        models = {"personal": personal, "noprbm": plain}
        return models if self.split()[0] else models | {"gm": plain}


def shifted(context: fl.Context, head: fl.LinearHead) -> Tensor:
    """Return the logits [B, C] of shifted features, head(z + e_i)."""
    return head(context.leaves, context.out.features + context.leaves[BIAS])


def distance_to_common_mean(context: fl.Context, mu: float) -> Tensor:
    """Return (1 / D) (1 / 2) ||r - zbar||^2, with r = (1 - mu) sg(r of the last batch) + mu m."""
    mean = batch_mean(context)
    if mu < 1:
        mean = (1 - mu) * context.leaves[RUNNING].detach() + mu * mean
    return 0.5 * (mean - context.leaves[COMMON]).square().mean()


def move_running_mean(context: fl.Context) -> Tensor:
    """Return 0, with the gradient r - m for r, so that plain SGD makes it (1 - mu) r + mu m."""
    term = 0.5 * (context.leaves[RUNNING] - batch_mean(context).detach()).square().sum()
    return term - term.detach()


def batch_mean(context: fl.Context) -> Tensor:
    """Return the mean feature of a batch, [D]."""
    features, mask = context.out.features, context.batch.mask
    count = mask.sum().clamp_min(1).to(features.dtype)
    return torch.where(mask[:, None], features, 0.0).sum(dim=0) / count


def start_running(context: fl.Context) -> fl.Tree:
    """Write r = 0 [D]."""
    return {RUNNING: torch.zeros_like(context.leaves[COMMON])}


# Set-up


def batch_means(context: fl.Context, steps: int) -> fl.Tree:
    """Return `means` [S, D] and `sizes` [S] of S steps, zero in all rows but that of this step."""
    step, mean = context.batch.step, batch_mean(context)
    here = torch.arange(steps, device=mean.device) == step  # [S]
    size = context.batch.mask.sum().double()
    return {"means": torch.where(here[:, None], mean, 0.0), "sizes": torch.where(here, size, 0.0)}


def last_running_mean(context: fl.Context, batches: fl.Tree, mu: float, batch_size: int) -> fl.Tree:
    """Return `mean` [D], r at the last full batch of a training, of the sums of `batch_means`."""
    means, sizes = batches["means"], batches["sizes"]  # [S, D], [S]
    step = torch.arange(len(sizes), dtype=sizes.dtype, device=sizes.device)
    full = sizes == batch_size
    ends = torch.where(full.any(), full, sizes > 0)
    age = torch.where(ends, step, -1.0).amax() - step  # of a batch when the training ends

    # r = sum over batches k of mu (1 - mu)^(last - k) m_k
    weight = mu * torch.full_like(age, 1 - mu).pow(age.clamp_min(0.0))  # 0^0 is 1
    return {"mean": torch.where(age >= 0, weight, 0.0).to(means.dtype) @ means}


def write_running_mean(context: fl.Context) -> fl.Tree:
    """Write r_i [D] of the set-up's batches into the leaf that is sent."""
    return {MEAN: context.ctx["batches.mean"].to(context.leaves[COMMON].dtype)}
