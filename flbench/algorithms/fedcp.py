"""FedCP: each sample's features are divided between two heads (Zhang et al., KDD 2023)."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import layer_norm, linear

import flbench.algorithms as fl
from flbench.algorithms.shared.linear_norm import linear_norm
from flbench.algorithms.shared.second import Second
from flbench.losses.cross_entropy import ScoresCrossEntropy

OWN = "own."  # prefix of the personal head; the net's own head is the global one
POLICY = ("cpn.weight", "cpn.bias", "cpn.norm.weight", "cpn.norm.bias")  # of the policy network
CONDITION = "condition"  # v_i [D], constant in a round
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels in MMD


@fl.ALGORITHMS.register("fedcp")
class FedCP(fl.Algorithm):
    """A policy network gates each feature: one part for a personal head, the rest for a global one.

    Shared: the body, the global head (W_g, b_g) and the policy network CPN (linear D -> 2 D,
    LayerNorm over 2 D, ReLU); personal: the head (W_i, b_i), equal to the global one at first. With
    v_i = sum_c W_i[c], divided by its length, at the beginning of the round, and features z,

        h_1, h_2 = CPN(z * v_i), each of D numbers
        s        = sigmoid(h_1 - h_2 + noise)           softmax of two gates per sample and feature
        logits   = W_i (s * z) + b_i + W_g ((1 - s) * z) + b_g

    Local training, one phase on body, CPN, W_i and b_i; W_g and b_g are frozen, and z0 are the
    features of the received body, without gradient: CE + lam MMD(z, z0), where MMD is the mean over
    all pairs of the batch of k(z, z') + k(z0, z0') - 2 k(z, z0') and k(x, y) = sum over w in 10,
    15, 20, 50 of exp(-||x - y||^2 / (2 w)). Upload: body, CPN and the head (W_i + W_g) / 2, (b_i +
    b_g) / 2. Server: body, CPN, W_g, b_g <- sum_i p_i of them, with p_i = n_i / sum_j n_j.
    `personal` has the newest shared parts and W_i; there is no global model.

    Readings. The authors' code is taken, which made the printed numbers; whether the paper has
    noise is not known. The noise is logistic, the difference of two Gumbel variables of temperature
    1. That code has it in tests too, so that its accuracy is random; here an evaluation takes the
    gates' mean over the noise, which gives the same expected logits. In the first round v_i is
    random there; here it is that of the initial head. There, an absent client is tested with the
    newest body and its old W_g and CPN; here with the newest of all. Their loaders drop the last
    batch, also in tests. The widths of the kernels are absolute, so that lam depends on the scale
    of features: for small nets the authors' lam of 5 can hold the body near the received one, and a
    smaller one learns faster. With gates near 1/2 the personal head moves by about a quarter of a
    plain head's step at the same learning rate.

    Gradients of cross entropy sum to zero over the classes, so that under SGD the column sums of
    W_i never change, but for the factor of weight decay, which the length of v_i does not know: v_i
    is one constant vector for all clients and rounds, and the condition has no information on the
    client.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedCP."""

        lam: float = Field(
            5.0,
            ge=0,
            description="weight of the distance (MMD) between features of the trained and of the"
            " received body",
        )

    config: Config
    paper = fl.Paper(
        "FedCP: Separating Feature Information for Personalized Federated Learning via Conditional"
        " Policy",
        "Zhang, Hua, Wang, Song, Xue, Ma, Guan",
        "KDD 2023 (arXiv 2307.01217)",
        "10.1145/3580305.3599345",
    )
    communication = fl.Communication(
        down="w, 2 D^2 + 6 D numbers", up="w, 2 D^2 + 6 D numbers", keeps="head"
    )
    needs = (fl.LINEAR_HEAD,)

    @property
    def own(self) -> Second:
        """The personal head."""
        return Second(OWN, self.linear_head.names)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        rng, d = fl.generator(self.setting.seed, "method"), self.setting.net.features
        like = start[self.linear_head.weight]
        policy = linear_norm(rng, "cpn", d, 2 * d, like)
        own = fl.repeat(self.own.start(start), self.setting.clients)
        return server | policy, clients | own

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        own = self.own.leaves
        body = frozenset(self.setting.net.parameters) - {*self.linear_head.names}
        terms = (
            ScoresCrossEntropy(scores=fl.bind(noisy_scores, self.linear_head)),
            fl.Term(self.config.lam, feature_distance),
        )
        steps = (
            fl.Transform(fl.bind(condition, self.linear_head)),
            self.phase(*terms, train=body | own | {*POLICY}),
            fl.Transform(fl.bind(half_head, self.linear_head)),
        )
        return fl.LocalProgram(steps, keeps | own, sends | {*POLICY})

    # Server: the weighted mean of what was sent

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        program = fl.LocalProgram((fl.Transform(fl.bind(condition, self.linear_head)),))
        scores = fl.bind(mean_scores, self.linear_head)
        return {"personal": fl.Deployment(self.dispatch(state, ids), program, predict=scores)}


def condition(context: fl.Context, head: fl.LinearHead) -> fl.Tree:
    """Return v_i [D], the sum over the classes of the personal head's rows, of length 1."""
    sums = context.leaves[OWN + head.weight].sum(dim=0)  # [D]
    return {CONDITION: sums / torch.linalg.vector_norm(sums).clamp_min(1e-12)}


def half_head(context: fl.Context, head: fl.LinearHead) -> fl.Tree:
    """Return the head that is sent, (W_i + W_g) / 2, under the names of the net."""
    leaves = context.leaves
    return {name: (leaves[OWN + name] + leaves[name]) / 2 for name in head.names}


def odds(context: fl.Context) -> Tensor:
    """Return h_1 - h_2 [B, D]: the log-odds of the personal gate."""
    leaves, z = context.leaves, context.out.features
    weight, bias, gain, shift = (leaves[name] for name in POLICY)
    hidden = linear(z * leaves[CONDITION], weight, bias)  # [B, 2 D]
    first, second = layer_norm(hidden, gain.shape, gain, shift).relu().chunk(2, dim=1)
    return first - second


def divided(context: fl.Context, gates: Tensor, head: fl.LinearHead) -> Tensor:
    """Return the logits [B, C] of both heads for gates s [B, D]."""
    leaves, z = context.leaves, context.out.features
    return head(leaves, gates * z, prefix=OWN) + head(leaves, (1 - gates) * z)


def noisy_scores(context: fl.Context, head: fl.LinearHead) -> Tensor:
    """Return the logits [B, C] in training, with logistic noise on the gates."""
    gate = odds(context)
    noise = logistic(context.batch.key, gate.shape[1]).to(gate.dtype)
    return divided(context, (gate + noise).sigmoid(), head)


def mean_scores(context: fl.Context, head: fl.LinearHead) -> Tensor:
    """Return the logits [B, C] in an evaluation: gates are their means over the noise."""
    return divided(context, mean_gate(odds(context)), head)


def mean_gate(odds: Tensor) -> Tensor:
    """Return the mean of sigmoid(d + noise) over standard logistic noise, for d of any shape.

    It is e^d (e^d - 1 - d) / (e^d - 1)^2; near 0, where this is 0 / 0, 1/2 + d/6.

    >>> mean_gate(torch.tensor([0.0, 1.5, -1.5]).double())
    tensor([0.5000, 0.7327, 0.2673], dtype=torch.float64)
    """
    size = odds.abs().double()
    safe = size.clamp_min(1e-2)
    less = (-safe).expm1()  # e^-d - 1
    far = (-less - safe * (-safe).exp()) / less.square()
    near = 0.5 + size / 6 - size.pow(3) / 180
    gate = torch.where(size < 1e-2, near, far)
    return torch.where(odds < 0, 1 - gate, gate).to(odds.dtype)


def logistic(key: Tensor, width: int) -> Tensor:
    """Return standard logistic noise [B, width] of float64, from `Batch.key` [B]."""
    unit = fl.uniform(key, 0)  # its bits make one key for each feature
    keys = (unit * 2.0**52).long()[:, None] * width + torch.arange(width, device=key.device)
    return fl.uniform(keys, 1).clamp(1e-15, 1 - 1e-15).logit()


def feature_distance(context: fl.Context) -> Tensor:
    """Return MMD between features of the trained body and of the received one, in [0, 8]."""
    batch, z = context.batch, context.out.features
    before = context.apply(context.start, batch.x, train=True).features.detach()
    pairs = batch.mask[:, None] & batch.mask  # [B, B]
    values = kernel(z, z) + kernel(before, before) - 2 * kernel(z, before)
    return torch.where(pairs, values, 0.0).sum() / pairs.sum().clamp_min(1).to(values.dtype)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return k(x_a, y_b) [B, B] of features [B, D]."""
    distance = (x[:, None] - y).square().sum(dim=2)
    return torch.stack([(-distance / (2 * width)).exp() for width in WIDTHS]).sum(dim=0)
