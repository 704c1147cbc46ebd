"""DFedHP: clients generate weights and mix the generator's parameters (Li et al., IJCAI 2025)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod, sqrt
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear

import flbench.algorithms as fl
from flbench.algorithms.shared.gossip import Gossip
from flbench.algorithms.shared.topology import GossipConfig

Z = frozenset({"z"})
PHI = frozenset({"hyper.in.weight", "hyper.in.bias", "hyper.out.weight", "hyper.out.bias"})
SMALL = 0.01  # scale of vectors: generated gains start near 1, generated biases near 0

Kind = Literal["weight", "gain", "bias"]


@fl.ALGORITHMS.register("dfedhp")
class DFedHP(Gossip):
    """Clients generate their weights with hypernetworks, whose parameters they mix with neighbours.

    There is no server. A client's model has a head v, which stays with the client, and weights
    theta, which its hypernetwork h generates from embeddings z, one per chunk of theta, and from
    the parameters phi of two linear layers, which are the same for all chunks. A client trains v,
    then phi, then z. It sends phi and z, which are smaller than theta for a large net, to its
    neighbours, and averages those that it receives with its own. A client is evaluated with the
    weights that its mixed phi and z generate, and its own head.

    Client i in each round (Algorithm 1), with cross entropy L and one optimizer per step:

        theta_i = h(phi_i, z_i)
        v_i    <- v_i - lr_v dL/dv_i            k_v epochs; theta_i is generated once
        phi_i  <- phi_i - lr_phi dL/dphi_i      k_phi epochs; theta_i is generated in every step
        z_i    <- z_i - lr_z dL/dz_i            k_z epochs; theta_i is generated in every step

    Clients i and l are neighbours if w_il > 0, w_ii included; all mix at once:

        phi_i  <- sum_l w_il phi_l
        z_i    <- sum_l w_il z_l

    Readings. The available text of the paper gives no widths of h, no learning rates, no k_v, k_phi
    and k_z, and no weights w. The widths are chosen such that a message has the printed size,
    1,360,512 numbers for a ResNet-18 with 11,168,832 shared parameters, where h generates the
    normalization layers too. The three steps share `train.local_epochs`, as 1, 2 and 1 of 4; w is
    that of `topology` and `mixing` (`shared/topology.py`). A participation of 0.1 without a server
    is read as ten neighbours among 100 clients, all of which train. Neighbours at random are
    directed, so that only the rows of w sum to 1. k_v, k_phi and k_z count epochs; the abstract
    says iterates. All clients start with the same phi and z, because h is not linear: the
    mean of unrelated phi and z generates noise. BatchNorm statistics stay with the client (the
    paper's nets have GroupNorm), because averaged phi and z do not generate the averaged weights to
    which averaged statistics would belong.

    The paper generates the convolutions and keeps the linear layers with the client, which is
    `private=linear`. By default (`private=head`) the head alone stays with the client, and hidden
    linear layers are generated. In ResNet-18, the paper's net, the head is the only linear layer,
    so that both are the same. In a net with hidden linear layers, `private=linear` trains these
    layers with `lr_v`, for which the rate of a head alone is too small
    (see docs/papers/dfedhp.md).

    The models before mixing are reported as `personal@local`; `after_training` makes them the
    method's result.
    """

    class Config(GossipConfig):
        """Keys of DFedHP."""

        private: Literal["head", "linear"] = Field(
            "head",
            description="what stays with the client instead of being generated: the head, or all"
            " linear layers (as in the paper)",
        )
        chunk: int = Field(
            9216, ge=1, description="number of weights that are generated from one embedding"
        )
        embedding: int = Field(128, ge=1, description="length of an embedding")
        hidden: int = Field(128, ge=1, description="number of units of the hidden layer")
        k_v: int = Field(1, ge=0, description="epochs of the private part v")
        k_phi: int | None = Field(
            None,
            ge=1,
            description="epochs of the hypernetwork phi (default: what k_v and k_z leave of the"
            " local epochs, 2 of 4, at least 1)",
        )
        k_z: int = Field(1, ge=0, description="epochs of the embeddings z")
        lr_v: float | None = Field(
            None, ge=0, description="learning rate of v (default: train.optimizer.lr)"
        )
        lr_phi: float | None = Field(
            None, ge=0, description="learning rate of phi (default: train.optimizer.lr)"
        )
        lr_z: float | None = Field(
            None, ge=0, description="learning rate of z (default: train.optimizer.lr)"
        )
        weight_decay_z: float = Field(
            0.0, ge=0, description="weight decay of z, which shrinks embeddings"
        )

    config: Config
    paper = fl.Paper(
        "Hypernetwork Aggregation for Decentralized Personalized Federated Learning",
        "Li, Peng, Du, Sun, Wang, Shen",
        "IJCAI 2025",
        "10.24963/ijcai.2025/161",
    )
    communication = fl.Communication(
        down="phi and z of the hypernetwork of each neighbour",
        up="phi and z of its hypernetwork to each neighbour",
        keeps="phi, z and head",
    )

    # The parts of a model: theta is generated by h from phi and z, and v stays with the client

    @cached_property
    def h(self) -> "Hypernetwork":
        """The function h, which makes theta of phi and z."""
        c, net = self.config, self.setting.net
        v = net.names("head")
        if c.private == "linear":
            v |= net.names("linear")
        theta = frozenset(net.parameters) - v
        return Hypernetwork(tensors_of(net, theta), c.chunk, c.embedding, c.hidden)

    @property
    def v(self) -> frozenset[str]:
        """Names of the parameters v."""
        return frozenset(self.setting.net.parameters) - {*self.h.theta}

    def called(self) -> Callable[[fl.Context], fl.Tree]:
        return self.h

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        # All clients have the same phi and z.
        return super().init(
            start | self.h.initial(start, fl.generator(self.setting.seed, "model", 1))
        )

    # Algorithm 1, local training, with cross entropy L

    def steps(self) -> tuple[fl.Step, ...]:
        c, v, h = self.config, self.v, self.called()
        epochs = self.setting.train.epochs_of(c.name)
        k_phi = c.k_phi or max(1, epochs - c.k_v - c.k_z)
        steps: tuple[fl.Step, ...] = ()
        if c.k_v:  # theta_i = h(phi_i, z_i) is written once, and v_i <- v_i - lr_v dL/dv_i
            steps = (fl.Transform(h), self.training(v, c.k_v, c.lr_v))
        # phi_i <- phi_i - lr_phi dL/dphi_i; theta_i is generated in every step
        steps = (*steps, self.training(PHI, k_phi, c.lr_phi, weights=h))
        if c.k_z:  # z_i <- z_i - lr_z dL/dz_i; theta_i is generated in every step
            steps = (*steps, self.training(Z, c.k_z, c.lr_z, c.weight_decay_z, weights=h))
        return steps

    def training(
        self,
        train: frozenset[str],
        epochs: int,
        lr: float | None,
        weight_decay: float | None = None,
        weights: Callable[[fl.Context], fl.Tree] | None = None,
    ) -> fl.Phase:
        """Return a phase that trains some leaves; None takes the optimizer of `train.*`."""
        given = {"lr": lr, "weight_decay": weight_decay}
        changed = {key: value for key, value in given.items() if value is not None}
        optimizer = self.setting.train.optimizer.model_copy(update=changed)
        return self.phase(
            *self.terms(), train=train, epochs=epochs, optimizer=optimizer, weights=weights
        )

    # Algorithm 1, exchange: phi_i <- sum_l w_il phi_l and z_i <- sum_l w_il z_l, the rule by which
    # `Gossip` mixes what clients send, here phi and z; they keep v.

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return (keeps | sends) - {*self.h.theta}, PHI | Z

    # Checks

    def requires(self) -> list[str]:
        unmet = super().requires()
        if not self.h.tensors:
            unmet.append(
                "the hypernetwork has nothing to generate: all parameters of the net (`model.name`)"
                " stay with the client. Choose a deeper net, such as model.name=lenet5, or set"
                " algorithm.private=head."
            )
        return unmet

    def notes(self) -> list[str]:
        notes, train, net = super().notes(), self.setting.train, self.setting.net
        message = self.h.size(net.size)
        if message >= net.size:
            notes.append(
                f"A message (phi, z) has at most {message:,} numbers, {message / net.size:.3g}"
                f" times the {net.size:,} parameters of the net: the hypernetwork saves traffic for"
                " large nets only. A smaller algorithm.hidden reduces it."
            )
        epochs = sum(step.epochs or 0 for step in self.steps() if isinstance(step, fl.Phase))
        if epochs > train.epochs_of(self.config.name):
            notes.append(
                f"v, phi and z are trained for {epochs} epochs in all, more than"
                f" train.local_epochs={train.local_epochs}. Raise train.local_epochs to compare"
                " methods at equal epochs."
            )
        return notes


def tensors_of(net: fl.NetSpec, theta: frozenset[str]) -> tuple[tuple[str, Kind], ...]:
    """Return pairs of a parameter of theta and its kind, in the net's own order."""
    tensors: list[tuple[str, Kind]] = []
    for layer in net.layers:
        kind: Kind = "gain" if layer.kind in ("norm", "batchnorm") else "weight"
        names = [name for name in layer.leaves if name in theta]
        tensors += [(name, "bias" if name.endswith("bias") else kind) for name in names]
    return tuple(tensors)


@dataclass(frozen=True)
class Hypernetwork:
    """The function h: theta = scale * h(phi, z), a value of `Phase.weights`.

    z [chunks, embedding] has an embedding for each chunk of theta; phi are two linear layers, `in`
    [hidden, embedding] and `out` [chunk, hidden], that all chunks share.

    Attributes:
        tensors: Pairs of a leaf and its kind, in the order in which outputs fill the leaves. An
            output has unit variance at the start. A `weight` is the output times sqrt(2 / fan_in),
            a `gain` is 1 + 0.01 output, a `bias` is 0.01 output.
        chunk: Number of outputs per chunk.
        embedding: Length of a chunk's embedding.
        hidden: Number of units of the hidden layer.
    """

    tensors: tuple[tuple[str, Kind], ...]
    chunk: int
    embedding: int
    hidden: int

    @property
    def theta(self) -> tuple[str, ...]:
        """Names of the generated leaves."""
        return tuple(name for name, _ in self.tensors)

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return theta; the generated leaves of the context give shapes."""
        leaves = context.leaves
        hidden = linear(leaves["z"], leaves["hyper.in.weight"], leaves["hyper.in.bias"]).relu()
        out = linear(hidden, leaves["hyper.out.weight"], leaves["hyper.out.bias"])

        # Chunk after chunk fills tensor after tensor: [chunks, chunk] -> [scalars] -> shapes.
        shapes = [leaves[name].shape for name in self.theta]
        sizes = [prod(shape) for shape in shapes]
        pieces = torch.split(out.flatten()[: sum(sizes)], sizes)

        theta: fl.Tree = {}
        for (name, kind), shape, piece in zip(self.tensors, shapes, pieces, strict=True):
            scale = sqrt(2 / prod(shape[1:])) if kind == "weight" else SMALL
            offset = 1.0 if kind == "gain" else 0.0
            theta[name] = scale * piece.reshape(shape) + offset
        return theta

    def size(self, scalars: int) -> int:
        """Return |phi| + |z|, the size of a message, for a number of generated scalars."""
        phi = (self.embedding + 1) * self.hidden + (self.hidden + 1) * self.chunk
        return phi + ceil(scalars / self.chunk) * self.embedding

    def initial(self, start: fl.Tree, rng: np.random.Generator) -> fl.Tree:
        """Return phi and z at the start.

        Embeddings are standard normal. Matrices are normal with the variance that gives outputs
        unit variance. Biases are zero. The seeded net gives shapes and dtype.
        """
        scalars = sum(start[name].numel() for name in self.theta)
        dtype = start[self.theta[0]].dtype

        def normal(rows: int, columns: int, variance: float) -> Tensor:
            drawn = rng.standard_normal((rows, columns)) * sqrt(variance)
            return torch.from_numpy(drawn).to(dtype)

        return {
            # The ReLU halves the second moment, which the variance 2 / embedding makes 2.
            "hyper.in.weight": normal(self.hidden, self.embedding, 2 / self.embedding),
            "hyper.in.bias": torch.zeros(self.hidden, dtype=dtype),
            "hyper.out.weight": normal(self.chunk, self.hidden, 1 / self.hidden),
            "hyper.out.bias": torch.zeros(self.chunk, dtype=dtype),
            "z": normal(ceil(scalars / self.chunk), self.embedding, 1.0),
        }
