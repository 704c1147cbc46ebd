"""FedPAC: aligned features and mixed heads (Xu, Tong, Huang, ICLR 2023)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm, weights_of_trained
from flbench.algorithms.shared.mixing import mix
from flbench.losses import CrossEntropy, PrototypeL2

LEAST_WEIGHT = 1e-3  # smaller weights of heads are set to zero, as in the authors' code


@fl.ALGORITHMS.register("fedpac")
class FedPAC(fl.Algorithm):
    """Bodies are averaged and pulled to common prototypes; heads are mixed for each client.

    Client i, with the received body and its own head (z: features of D numbers, n_k: samples of
    class k, n: all samples, P: the server's prototypes):

        1. mu_k = mean of z over class k,  h_k = (n_k / n) mu_k            all samples, eval mode
           v    = (mean ||z||^2 - sum_k ||h_k||^2) / n
        2. the head, one epoch at `head_lr`: CE, under the frozen body
        3. the body, under the frozen head: CE + lam (1 / D) ||z - c_y||^2, c_k = P_k, or mu_k for a
           class without P_k; lam = 0 while there are no prototypes
        4. m_k  = mean of z over class k, with the trained body            all samples, eval mode

    Server: body <- sum_i p_i body_i, with p_i = n_i / sum_j n_j; P_k <- mean of m_k over the
    cohort's clients that hold class k, weighted by n_k. For each client i of the cohort,

        M_jl   = sum_k <h_ik - h_jk, h_ik - h_lk>
        alpha  = argmin of a^T (diag(v) + M) a over the simplex; below 1e-3: 0; divided by the sum
        head_i <- sum_j alpha_j head_j

    A client is evaluated with the newest body and the head that it received last; one that was
    never part of a cohort has the initial head. There is no global model.

    Readings. The authors' code is taken where the paper is silent; it is a simplified version. The
    problem of the heads is convex and solved exactly in float64. The authors' code deletes small
    eigenvalues if one is negative in float32, which happens for clients with one class. A class
    that nobody in the cohort holds keeps its prototype, where their code stops. Their nets stay in
    eval mode after an evaluation; here the body is trained in train mode, and the head in eval
    mode. Optimizers of `train.optimizer`, one per phase. v has the factor 1 / n, so that a client
    with one sample has v = 0 and counts as exact. A client whose body took no optimizer step (one
    sample with BatchNorm) enters neither mean, but its head may be mixed.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedPAC."""

        lam: float = Field(
            1.0, ge=0, description="weight of the distance of features to the prototypes"
        )
        head_lr: float = Field(
            0.1, ge=0, description="learning rate of the head; train.schedule scales it too"
        )

    config: Config
    by_client = (("head_weights", (0, 1)),)
    paper = fl.Paper(
        "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
        "Xu, Tong, Huang",
        "ICLR 2023 (arXiv 2306.11867)",
    )
    communication = fl.Communication(
        down="body, C prototypes of D features, C flags; a head after the round",
        up="w, 2 D + 2 numbers per held class, 1 number",
        keeps="head",
    )
    needs = (fl.BODY, fl.PAIRS)

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        table, _ = prototypes.empty(self.setting, start)
        weights = torch.zeros(self.setting.clients, self.setting.clients, dtype=torch.float64)
        return server | table | {"head_weights": weights}, clients

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        c, train = self.config, self.setting.train
        head, body = self.personal(), frozenset(self.setting.net.parameters) - self.personal()

        before = fl.Statistic("before", fl.bind(moments, self.setting.classes), finish=summary)
        train_head = self.phase(
            CrossEntropy(),
            train=head,
            epochs=1,
            optimizer=train.optimizer.model_copy(update={"lr": c.head_lr}),
            batchnorm="eval",
        )
        align = PrototypeL2(c.lam, prototypes="before.anchors", present="before.anchored")
        train_body = self.phase(CrossEntropy(), align, train=body)

        steps = (
            *reestimate_batchnorm(self.setting),
            before,
            fl.Transform(write_summary),
            train_head,
            train_body,
            *prototypes.collect(self.setting, write=write_prototypes),
        )
        sends = sends | prototypes.LEAVES | {"h", "v"} | head
        return fl.LocalProgram(steps, keeps, sends, (*prototypes.MASKS, ("h", "held")))

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        body, table = super().dispatch(state, ids).shared, prototypes.table(state.server)
        return fl.Dispatch(fl.Message(body.values | table.values, table.mask))

    def weights(self, results: fl.Results) -> Tensor:
        """Return the weight of each client of the cohort, 0 if its body took no step."""
        return weights_of_trained(super().weights(results), self.setting, results)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        sent, weights = results.sent.values, self.weights(results)
        server = self.mean(results)

        # P_k = sum_i n_ik m_ik / sum_i n_ik
        counts = sent["counts"].double() * (weights > 0)[:, None]  # [K, C]
        total = counts.sum(dim=0)  # [C]
        mean = torch.einsum("kc,kcd->cd", counts, sent["prototypes"].double())
        mean = mean / total.clamp_min(1.0)[:, None]
        old = state.server["global.prototypes"]
        server["global.prototypes"] = torch.where((total > 0)[:, None], mean.to(old.dtype), old)
        server["global.present"] = state.server["global.present"] | (total > 0)

        alpha = head_weights(sent["h"].double(), sent["v"].double())  # [K, K]
        heads = mix(fl.only(sent, self.personal()), alpha)
        rows, ids = state.server["head_weights"].clone(), results.ids  # [N, N], for reports
        rows[ids] = 0.0
        rows[ids[:, None], ids] = alpha
        server["head_weights"] = rows
        metrics = {"own_head_weight_mean": float(alpha.diagonal().mean())}
        return fl.Update(server, reply=fl.Message(heads), metrics=metrics)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the last weights of the heads; nothing before the first round."""
        weights = state.server["head_weights"]  # [N, N], a row of zeros for a client without any
        if not weights.any():
            return ()
        table = fl.LearnedTable(
            "head weights",
            "Weight of each client's head (column) in the head that a client (row) received last;"
            " empty for clients that were not in the cohort.",
            torch.where(weights > 0, weights, torch.nan),
        )
        return (table,)


# Client


def moments(context: fl.Context, classes: int) -> fl.Tree:
    """Return `sums` [C, D], `counts` [C] and `squares` [] of one batch, float64."""
    squares = context.out.features.double().square().sum(dim=1)  # [B]
    squares = torch.where(context.batch.mask, squares, 0.0).sum()
    return prototypes.sums_by_class(context, classes) | {"squares": squares}


def summary(context: fl.Context, sums: fl.Tree) -> fl.Tree:
    """Return `h` [C, D] and `v` [], float64, and what features are pulled to.

    That is `anchors` [C, D], and `anchored` [C] bool for the classes that have one, none while
    there are no prototypes.

    Args:
        context: Its ctx has `global.prototypes` P [C, D] and `global.present` [C].
        sums: Results of `moments`, over all samples.
    """
    counts, table = sums["counts"], context.ctx["global.prototypes"]
    n = counts.sum().clamp_min(1.0)
    h = sums["sums"] / n  # [C, D]
    v = (sums["squares"] / n - h.square().sum()) / n
    means = sums["sums"] / counts.clamp_min(1.0)[:, None]  # [C, D]
    present = context.ctx["global.present"]
    anchors = torch.where(present[:, None], table, means.to(table.dtype))
    anchored = (present | (counts > 0)) & present.any()
    return {"h": h, "v": v.clamp_min(0.0), "anchors": anchors, "anchored": anchored}


def write_summary(context: fl.Context) -> fl.Tree:
    """Write the leaves `h` [C, D], in the type of the weights, and `v` [] float64."""
    ctx = context.ctx
    return {"h": ctx["before.h"].to(ctx["global.prototypes"].dtype), "v": ctx["before.v"]}


def write_prototypes(context: fl.Context) -> fl.Tree:
    """Write the class means of the trained body into the leaves `prototypes.LEAVES`."""
    ctx = context.ctx
    counts = ctx["classes.counts"]
    means = ctx["classes.sums"] / counts.clamp_min(1.0)[:, None]
    return prototypes.upload(means.to(ctx["global.prototypes"].dtype), counts)


# Server


def head_weights(h: Tensor, v: Tensor) -> Tensor:
    """Return the weights [K, K] float64 with which each client mixes the heads of the cohort.

    Args:
        h: [K, C, D] float64, class means times class shares, zero for absent classes.
        v: [K] float64, >= 0, the variances.
    """
    rows = []
    for i in range(len(h)):
        distance = (h[i] - h).flatten(1)  # [K, C D]
        alpha = least_quadratic(v.diag() + distance @ distance.T, first=i)
        alpha = torch.where(alpha < LEAST_WEIGHT, 0.0, alpha)
        rows.append(alpha / alpha.sum())
    return torch.stack(rows)


def least_quadratic(q: Tensor, first: int) -> Tensor:
    """Return the minimum of a^T Q a over the simplex: a >= 0, sum a = 1.

    For x = t a, the minimum over t of 1/2 x^T Q x - sum x is -1 / (2 a^T Q a). So the minimum is
    the direction of the x >= 0 that minimizes 1/2 x^T Q x - sum x, a problem of nonnegative least
    squares, which the active set method of Lawson and Hanson (1974) solves exactly.

    Args:
        q: [K, K] float64, symmetric and positive semidefinite.
        first: Entry that has all the weight if it alone gives the value 0.

    >>> least_quadratic(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64), first=0)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    scale = q.diagonal().mean()
    x = torch.zeros_like(q[0])
    if float(q[first, first]) <= 0.0:
        return x.index_fill(0, torch.tensor([first]), 1.0)
    q = q / scale + 1e-13 * torch.eye(len(q), dtype=q.dtype)  # so that it can be inverted

    support = torch.zeros(len(q), dtype=torch.bool)
    support[first] = True
    while True:
        # x <- the minimum on the support; entries that would become negative leave the support.
        while True:
            target = torch.zeros_like(x)
            block = q[support][:, support]
            target[support] = torch.linalg.solve(block, torch.ones_like(block[0]))
            negative = support & (target <= 0)
            if not negative.any():
                break
            share = (x[negative] / (x[negative] - target[negative])).min()
            x = x + share * (target - x)
            support &= ~negative | (x > 1e-12 * x.max())
            x[~support] = 0.0
        x = target
        slope = (1 - q @ x).masked_fill(support, -torch.inf)  # negative gradient
        if float(slope.max()) < 1e-10:
            return x / x.sum()
        support[slope.argmax()] = True
