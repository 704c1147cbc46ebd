"""pFedHN: the server generates each client's weights (Shamsian et al., ICML 2021)."""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import pairwise_cosines

V = "embeddings"  # [N, l] at the server
MEMBERS = "members"  # [N] bool at the server: clients of the training, False for those that join
BUFFER = "momentum."  # prefix of the server's momentum buffers
PAPERS_LR = 0.01  # of the server, for one client in a round
MOMENTUM, DECAY, CLIP = 0.9, 1e-3, 50.0  # of the server's SGD: also weight decay, largest norm
DEPTH = 3  # hidden layers of the hypernetwork behind the first one
TINY = 1e-6  # added to a norm by which gradients are divided, as in PyTorch
JOIN = "join."  # prefix of the embedding of a client that joins, and of its momentum


@fl.ALGORITHMS.register("pfedhn")
class PFedHN(fl.Algorithm):
    """A hypernetwork at the server generates the weights of each client from an embedding.

    The server has a hypernetwork h with parameters phi, and an embedding v_i in R^l of each client.
    In a round, for each client i of the cohort (K clients, S local steps):

        (1)  theta_i = h(v_i; phi)                         sent to the client
        (2)  theta~_i = theta_i after S optimizer steps    sent to the server
        (3)  delta_i = theta_i - theta~_i
        (4)  g_phi = 1/K sum_i (d theta_i / d phi)^T delta_i
        (5)  g_v_i = (d theta_i / d v_i)^T delta_i
        (6)  a step of SGD on phi and on the v_i of the cohort  (momentum 0.9, decay 0.001)

    h is a linear layer from l to H units, three times ReLU and a linear layer from H to H, and one
    linear layer for each parameter of the net. A client is evaluated with h(v_i) of the newest
    phi and v_i; there is no global model. In the training, phi and v never leave the server. With
    `head=personal` (pFedHN-PC) h generates the body, and clients train and keep heads.

    Readings. The paper has one client in a round. With a cohort, all clients get weights of the
    same phi; its gradient is the mean over them (`agg_weights=samples` weights it), while g_v_i is
    that of the client alone, undivided. One norm over both is clipped at 50, after the mean. A mean
    moves phi less than K rounds of one client would, so the default of `server_lr` is the paper's
    0.01 times K, at most 0.1, also with personal heads, for which the paper takes 0.05. Absent
    clients' embeddings wait. In the authors' code, momentum and weight decay move them in every
    round. The mean of phi's gradients leaves out clients that made no step; their embeddings and
    the momentum of these wait, too, and a round in which no client made a step leaves the server as
    it was.

    The local optimizer and its clipping are those of `train.*`, as with all methods; the authors
    take lr 0.005, momentum 0.9, weight decay 5e-5, clip 50 and batches of 64, and 5,000 rounds of
    one client, each of 50 steps. Batches are those of passes over the samples instead of
    independent draws. With `head=personal`, head and body are trained by one optimizer, whose
    clipping covers both, with new momentum in each round, and all heads start as that of the seeded
    net.

    The paper's nets have no normalization layers. Here h generates their parameters too, as one
    plus the output for weights. BatchNorm statistics and other buffers are never generated: they
    stay with the client, or are re-estimated (`train.batchnorm=drop`).

    A client that joins after the training is evaluated with h(mean of all v). With `join_rounds` it
    then repeats (1), (2), (3), (5) and (6) for its own v, with phi frozen and v starting at the
    mean. The client computes the server's part, so that it receives phi once instead of
    theta in each of these rounds; its batches are the same in all of them.
    """

    class Config(fl.UniformConfig):
        """Keys of pFedHN."""

        head: Literal["generated", "personal"] = Field(
            "generated",
            description="the hypernetwork generates the whole net (pFedHN), or the body alone, and"
            " clients keep heads of their own (pFedHN-PC)",
        )
        embedding: int | None = Field(
            None,
            ge=1,
            description="length l of an embedding (default: 1 + a quarter of the number of clients,"
            " rounded down, as in the authors' code)",
        )
        hidden: int = Field(100, ge=1, description="number H of units of each hidden layer")
        server_lr: float | None = Field(
            None,
            ge=0,
            description="learning rate of the hypernetwork (paper: 0.01 for one client in a round,"
            " and 0.05 with personal heads; default: 0.01 times the number of clients in a round,"
            " at most 0.1)",
        )
        join_rounds: int = Field(
            0,
            ge=0,
            description="rounds in which a client that joins after the training fits its embedding,"
            " with the hypernetwork frozen; 0: it has the mean of all embeddings",
            json_schema_extra={"unit": "rounds"},
        )

    config: Config
    by_client = ((V, (0,)), (BUFFER + V, (0,)), (MEMBERS, (0,)))
    paper = fl.Paper(
        "Personalized Federated Learning using Hypernetworks",
        "Shamsian, Navon, Fetaya, Chechik",
        "ICML 2021 (arXiv 2103.04628)",
    )
    communication = fl.Communication(
        down="generated weights, as large as w (PC: body)",
        up="trained weights (PC: body)",
        keeps="BatchNorm statistics (PC: head)",
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head") if self.config.head == "personal" else frozenset()

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, others = super().split()
        generated = others & frozenset(self.setting.net.parameters)
        return keeps | (others - generated), generated  # no buffer is generated

    @cached_property
    def h(self) -> "Hypernetwork":
        """The hypernetwork."""
        net, generated = self.setting.net, self.split()[1]
        norms = [layer for layer in net.layers if layer.kind in ("norm", "batchnorm")]
        gains = {name for one in norms for name in one.parameters if name.endswith("weight")}
        names = tuple(name for name in net.parameters if name in generated)
        return Hypernetwork(names, frozenset(gains))

    def requires(self) -> list[str]:
        if not self.h.names:
            return [f"{fl.BODY.sentence} Or set algorithm.head=generated."]
        size, there = self.setting.net.size, fl.memory_of_machine()
        needed = 16 * (self.config.hidden + 1) * size  # bytes of phi, its momentum and its gradient
        if needed <= there:
            return []
        return [
            f"the hypernetwork of a net with {size:,} parameters would take {needed / 2**30:,.1f}"
            f" GiB, and this machine has {there / 2**30:,.1f} GiB. Choose a smaller net, or a"
            " smaller algorithm.hidden."
        ]

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        clients, c = self.setting.clients, self.config
        length = int(1 + clients / 4) if c.embedding is None else c.embedding
        rng = fl.generator(self.setting.seed, "method")
        learned = self.h.initial(fl.only(start, self.h.names), length, c.hidden, rng)
        dtype = start[self.h.names[0]].dtype
        learned[V] = torch.from_numpy(rng.standard_normal((clients, length))).to(dtype)
        server = learned | {BUFFER + name: torch.zeros_like(learned[name]) for name in learned}
        server[MEMBERS] = torch.zeros(clients, dtype=torch.bool)
        return server, fl.repeat(fl.only(start, self.split()[0] | self.joined), clients)

    # (1): the server generates and sends theta_i

    def generated(self, state: fl.State, ids: Tensor) -> fl.Tree:
        """Return theta_i of clients `ids` [K], [K, ...] per parameter."""
        # One client at a time: its weights are then the same to the bit in any cohort.
        rows = [self.h(state.server, state.server[V][i]) for i in ids.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in self.h.names}

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        return fl.Dispatch(rows=fl.Message(self.generated(state, ids)))

    # (2): the client trains theta~_i, as in FedAvg. (3) to (6): the server learns phi and v_i

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        server = state.server
        update = {MEMBERS: torch.ones_like(server[MEMBERS])}
        order = results.ids.argsort()  # so that the order of the cohort does not matter
        order = order[results.steps[order] > 0]
        if not len(order):
            return fl.Update(update)
        ids, sent = results.ids[order], results.sent.values
        shares = self.weights(results)[order]
        shares = (shares / shares.sum()).to(server[V])  # [K], 1 / K by default

        theta = self.generated(state, ids)
        delta = {name: theta[name] - sent[name][order] for name in theta}  # (3), [K, ...]

        # (4), (5): vector-Jacobian products of h at all v_i together, a sum over clients for phi.
        phi = self.phi(server)
        product = torch.func.vjp(self.h, phi, server[V][ids])[1]
        g_phi, g_v = product({name: scaled(shares, rows) for name, rows in delta.items()})
        g_v = g_v / shares[:, None]  # undivided, [K, l]

        # (6)
        squares = [float(g.double().square().sum()) for g in (*g_phi.values(), g_v)]
        norm = sqrt(sum(squares))
        factor, lr = min(1.0, CLIP / (norm + TINY)), self.server_lr
        for name, g in g_phi.items():
            one = moved(server[name], server[BUFFER + name], factor * g, lr)
            update[name], update[BUFFER + name] = one
        rows = moved(server[V][ids], server[BUFFER + V][ids], factor * g_v, lr)
        for name, row in zip((V, BUFFER + V), rows, strict=True):
            update[name] = server[name].index_copy(0, ids, row)
        return fl.Update(update, metrics={"server_gradient_norm": norm})

    @staticmethod
    def phi(server: fl.Tree) -> fl.Tree:
        """Return the parameters of the hypernetwork."""
        return {name: value for name, value in server.items() if name.startswith("hyper.")}

    @property
    def server_lr(self) -> float:
        """The key, or the paper's rate times the number K of clients in a round, at most 10."""
        clients = max(1, int(self.setting.train.participation * self.setting.clients + 0.5))
        given = self.config.server_lr
        return PAPERS_LR * min(clients, 10) if given is None else given

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return how similar the embeddings are; nothing before a client took part."""
        known = state.participation_count > 0
        if not known.any() or len(known) > fl.MOST_SHOWN:
            return ()
        cosines = pairwise_cosines(state.server, (V,))  # 1 within rounding for equal embeddings
        table = fl.LearnedTable(
            "embedding similarity",
            "Cosine of the embeddings from which the server generates the weights of two clients;"
            " empty for clients that have not taken part.",
            torch.where(known[:, None] & known, cosines.clamp(-1.0, 1.0), torch.nan),
        )
        return (table,)

    # Evaluation, and clients that join

    @property
    def joined(self) -> frozenset[str]:
        """Names of the generated weights that a client keeps after it has joined."""
        return frozenset(self.h.names) if self.config.join_rounds else frozenset()

    def mean_embedding(self, state: fl.State) -> Tensor:
        """Return the mean [l] of the embeddings of the clients of the training."""
        return state.server[V][state.server[MEMBERS]].mean(dim=0)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        members, theta = state.server[MEMBERS], self.generated(state, ids)
        joins, mask = ~members[ids] & members.any(), {}  # [K]
        if self.joined:  # what a new client has fitted remains
            mask = dict.fromkeys(theta, ~joins)
        elif joins.any():
            common = self.h(state.server, self.mean_embedding(state))
            for name, value in theta.items():
                value[joins] = common[name]
        return {"personal": fl.Deployment(fl.Dispatch(rows=fl.Message(theta, mask)))}

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining | None:
        """Return how a new client fits its embedding, with phi frozen."""
        rounds, members = self.config.join_rounds, state.server[MEMBERS]
        if not rounds or not members.any():
            return None
        shared = self.phi(state.server) | {JOIN + "mean": self.mean_embedding(state)}
        write = fl.Transform(fl.bind(write_generated, self.h))
        fit = fl.Transform(fl.bind(fit_embedding, self.h, self.server_lr))
        rounds_of_one = (write, self.phase(*self.terms()), fit) * rounds
        steps: tuple[fl.Step, ...] = (fl.Transform(start_embedding), *rounds_of_one, write)
        return fl.Joining(
            fl.Dispatch(fl.Message(shared)), fl.LocalProgram(steps, self.split()[0] | self.joined)
        )


@dataclass(frozen=True)
class Hypernetwork:
    """The function h, theta = h(v; phi).

    phi has `hyper.0.weight` [H, l] and `hyper.K.weight` [H, H] for K = 1, 2, 3, with biases
    [H], and for each generated parameter `hyper.out.NAME.weight` [..., H] and `hyper.out.NAME.bias`
    [...], where ... is the parameter's own shape.

    Attributes:
        names: Names of the generated parameters, in the net's order.
        gains: Names of the weights of normalization layers, which are one plus the output.
    """

    names: tuple[str, ...]
    gains: frozenset[str]

    def __call__(self, phi: fl.Tree, v: Tensor) -> fl.Tree:
        """Return theta for one embedding [l], or [K, ...] per parameter for K embeddings [K, l]."""
        e = linear(v, phi["hyper.0.weight"], phi["hyper.0.bias"])  # [K, H]
        for k in range(1, DEPTH + 1):
            e = linear(e.relu(), phi[f"hyper.{k}.weight"], phi[f"hyper.{k}.bias"])
        theta = {}
        for name in self.names:
            weight, bias = phi[f"hyper.out.{name}.weight"], phi[f"hyper.out.{name}.bias"]
            out = torch.tensordot(e, weight, dims=([-1], [-1])) + bias  # [K, ...]
            theta[name] = 1 + out if name in self.gains else out
        return theta

    def initial(
        self, start: fl.Tree, length: int, hidden: int, rng: np.random.Generator
    ) -> fl.Tree:
        """Return phi at the start, drawn as PyTorch draws the parameters of linear layers.

        The generated parameters of the seeded net, `start`, give shapes and dtype.
        """
        layers: list[tuple[str, tuple[int, ...], int]] = [("0", (hidden,), length)]
        layers += [(f"{k}", (hidden,), hidden) for k in range(1, DEPTH + 1)]
        layers += [(f"out.{name}", tuple(start[name].shape), hidden) for name in self.names]
        phi: fl.Tree = {}
        for name, outputs, inputs in layers:
            width = 1 / sqrt(inputs)
            for part, shape in (("weight", (*outputs, inputs)), ("bias", outputs)):
                drawn = torch.from_numpy(np.asarray(rng.uniform(-width, width, shape)))
                phi[f"hyper.{name}.{part}"] = drawn.to(start[self.names[0]].dtype)
        return phi


def scaled(factors: Tensor, rows: Tensor) -> Tensor:
    """Return rows [K, ...], each times its factor [K]."""
    return factors.reshape(-1, *[1] * (rows.ndim - 1)) * rows


def moved(value: Tensor, buffer: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """Return a tensor of the server and its momentum after a step of PyTorch's SGD."""
    # A gradient may be a transposed view. Strides decide about rounding in products, and a
    # checkpoint does not keep them.
    buffer = MOMENTUM * buffer + gradient.contiguous() + DECAY * value
    return value - lr * buffer, buffer


# A client that joins


def start_embedding(context: fl.Context) -> fl.Tree:
    """Write the embedding v [l] of a new client, the mean of the others, and its momentum."""
    mean = context.ctx[JOIN + "mean"]
    return {JOIN + "v": mean.clone(), JOIN + "momentum": torch.zeros_like(mean)}


def write_generated(context: fl.Context, h: Hypernetwork) -> fl.Tree:
    """Write theta = h(v) into the leaves of the net."""
    return h(context.ctx, context.leaves[JOIN + "v"])


def fit_embedding(context: fl.Context, h: Hypernetwork, lr: float) -> fl.Tree:
    """Return the embedding and its momentum after (3), (5) and (6), with phi frozen."""
    leaves = context.leaves
    v, buffer = leaves[JOIN + "v"], leaves[JOIN + "momentum"]
    found = torch.func.vjp(lambda row: h(context.ctx, row), v)
    theta, product = found[0], found[1]
    (g,) = product({name: value - leaves[name] for name, value in theta.items()})
    g = g * (CLIP / (g.norm() + TINY)).clamp_max(1.0)
    v, buffer = moved(v, buffer, g, lr)
    return {JOIN + "v": v, JOIN + "momentum": buffer}
