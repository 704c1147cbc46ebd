"""FedRoD: a generic head for all clients and a personal one on top of it (Chen, Chao, 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    Deployment,
    Dispatch,
    Info,
    LocalProgram,
    Message,
    Outputs,
    Paper,
    Results,
    State,
    Statistic,
    Step,
    StepContext,
    Transform,
    Tree,
    Update,
    generator,
    only,
    repeat,
    weighted_mean,
)
from flbench.algorithms.shared.linear_head import unmet
from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.losses.cross_entropy import mean_cross_entropy
from flbench.losses.similarity import full_precision, wide

OWN = "own."  # prefix of a personal head that the client keeps
NU = ("nu.in.weight", "nu.in.bias", "nu.out.weight", "nu.out.bias")  # of the hypernetwork
COUNTS = "held.counts"  # ctx entry [C]: the client's number of samples of each class


class FedRoDConfig(AlgorithmConfig):
    """Keys of FedRoD."""

    head: Literal["linear", "hyper"] = Field(
        "linear",
        description="the personal head: one that the client keeps and trains, or one that a shared"
        " hypernetwork makes from the client's class shares",
    )
    gamma: float = Field(
        1.0,
        ge=0,
        description="exponent of the class counts in the loss of the generic head; 0 is cross"
        " entropy",
    )
    absent: Literal["literal", "one"] = Field(
        "literal",
        description="a class without samples at the client leaves the softmax of the generic head's"
        " loss (as the formula says), or counts as one sample",
    )
    init: Literal["zero", "copy"] = Field(
        "zero",
        description="head=linear: first personal head, zero or (as in other code) a copy of the"
        " generic one",
    )
    hidden: int = Field(32, ge=1, description="head=hyper: units of the hypernetwork")


@ALGORITHMS.register("fedrod")
class FedRoD(Algorithm):
    """A shared net learns a class-balanced loss; a personal head adds to its logits.

    Client i, one phase on all of body, generic head (W, b) and personal head (W_i, b_i), with its
    number of samples n_c of class c, features z and no gradient through sg:

        o   = W z + b
        L_G = CE(o + gamma log n, y)                      balanced softmax, for body, W and b
        o_i = sg(o) + W_i sg(z) + b_i
        L_P = CE(o_i, y)                                  for the personal head alone
        L   = L_G + L_P

    With `head=hyper`, (W_i, b_i) = H(n / sum n; nu) is made by a shared hypernetwork, linear, ReLU,
    linear, and L_P trains its parameters nu. Server: body, W, b (and nu) <- sum_i p_i of them, with
    p_i = n_i / sum_j n_j. `personal` has the logits o + W_i z + b_i of the newest shared net;
    `generic`, evaluated on each client's samples, and `gm` have o. Class counts are no part of a
    prediction.

    Readings, since no code of the authors is public: L_P reaches neither body nor generic head, the
    personal logits are added to the generic ones, and H is trained end to end with the optimizer
    of the net. W_i and the last layer of H start at zero, so that the personal head is no
    correction at first; other code starts from a copy of W (`init=copy`), with which o_i = 2 o. A
    class without samples leaves the softmax of L_G, so that its row of W has no gradient; a client
    with one class does not move the shared net, and is averaged nevertheless.

    The paper evaluates personal models right after local training; here they have the newest shared
    net. `train.clip` limits one norm over the gradients of both losses. The logged training loss is
    the sum of both. Terms of `train.terms` act on L_P.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedRoDConfig
    config: FedRoDConfig
    paper = Paper(
        "On Bridging Generic and Personalized Federated Learning for Image Classification",
        "Chen, Chao",
        "ICLR 2022 (arXiv 2107.00778)",
    )
    communication = Communication(
        down="w (head=hyper: and nu)",
        up="w (head=hyper: and nu)",
        keeps="a head (head=hyper: nothing)",
    )

    def requires(self) -> list[str]:
        return unmet(self.setting.net, "a personal head is added to it")

    def personal_head(self) -> "PersonalHead":
        """Return the personal head, as a function of the client's leaves and ctx."""
        net, classes = self.setting.net, self.setting.classes
        head = net.names("head")
        names = tuple(name for name in net.parameters if name in head)  # weight, and a bias if any
        shapes = ((classes, net.features), (classes,))[: len(names)]
        return PersonalHead(names, shapes, hyper=self.config.head == "hyper")

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        head = self.personal_head()
        if head.hyper:
            like, rng = start[head.names[0]], generator(self.setting.seed, "method")
            c, h, out = self.setting.classes, self.config.hidden, head.size
            first = rng.uniform(-(c**-0.5), c**-0.5, (h, c + 1))  # PyTorch's range for a Linear
            drawn = torch.from_numpy(first).to(like.dtype)
            nu = (drawn[:, :c], drawn[:, c], like.new_zeros(out, h), like.new_zeros(out))
            return server | dict(zip(NU, nu, strict=True)), clients
        own = prefixed(OWN, only(start, head.names))
        if self.config.init == "zero":
            own = {name: torch.zeros_like(value) for name, value in own.items()}
        return server, clients | repeat(own, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        own = self.personal_head().trained
        train = self.phase(
            BalancedCrossEntropy(self.config.gamma, literal=self.config.absent == "literal"),
            PersonalCrossEntropy(self.personal_head()),
            train=frozenset(self.setting.net.parameters) | own,
        )
        if self.config.head == "hyper":
            return LocalProgram((*self.prepare(), train), keeps, sends | own)
        return LocalProgram((*self.prepare(), train), keeps | own, sends)

    def prepare(self) -> tuple[Step, ...]:
        """Return steps that count the client's samples by class, and receive nu if there is one."""
        count = Statistic(COUNTS.partition(".")[0], CountClasses(self.setting.classes))
        return (count, Transform(receive)) if self.config.head == "hyper" else (count,)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        if self.config.head == "hyper" and state.is_initial:
            return Dispatch(Message(only(state.server, NU)))  # clients have the seeded net, no nu
        return super().dispatch(state, ids)

    def aggregate(self, state: State, results: Results) -> Update:
        shared = self.program(state).sends
        return Update(weighted_mean(only(results.sent.values, shared), self.weights(results)))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        models = super().deploy(state, ids)
        generic = models.pop("personal")
        add = Transform(AddHead(self.personal_head()))
        personal = replace(generic, program=LocalProgram((*self.prepare(), add)))
        return {"personal": personal, "generic": generic} | models


def receive(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write the received nu, which is an entry of ctx, into leaves that can be trained."""
    return only(ctx, NU)


@dataclass(frozen=True)
class PersonalHead:
    """The personal head as (leaves, ctx) -> its weight [C, D] and bias [C].

    Attributes:
        names: Names of the parameters of the net's head: the weight, and the bias if there is one.
        shapes: Their shapes.
        hyper: Whether the hypernetwork nu makes the head from the class shares; otherwise it is
            among the client's leaves.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    hyper: bool

    @property
    def trained(self) -> frozenset[str]:
        """Names of the leaves that the loss of the personal head trains."""
        return frozenset(NU) if self.hyper else prefixed_names(OWN, self.names)

    @property
    def size(self) -> int:
        """Number of scalars of a head."""
        return sum(map(prod, self.shapes))

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the head under the names of the net's head."""
        return dict(zip(self.names, self._values(leaves, ctx), strict=True))

    def _values(self, leaves: Tree, ctx: Tree) -> Iterator[Tensor]:
        if not self.hyper:
            yield from (leaves[OWN + name] for name in self.names)
            return
        first, first_bias, last, last_bias = (leaves[name] for name in NU)
        counts = ctx[COUNTS]  # [C] float64
        shares = (counts / counts.sum().clamp_min(1.0)).to(first.dtype)
        hidden = linear(shares, first, first_bias).relu()  # [h]
        flat = linear(hidden, last, last_bias)  # [C D + C]
        parts = torch.split(flat, [*map(prod, self.shapes)])
        for part, shape in zip(parts, self.shapes, strict=True):
            yield part.reshape(shape)


@dataclass(frozen=True)
class AddHead:
    """Function of a Transform: adds the personal head to that of the net, for an evaluation."""

    head: PersonalHead

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return W + W_i and b + b_i under the names of the net's head."""
        return {name: leaves[name] + own for name, own in self.head(leaves, ctx).items()}


@dataclass(frozen=True)
class BalancedCrossEntropy:
    """L_G: mean of -log(n_y^gamma exp(o_y) / sum_c n_c^gamma exp(o_c)) over the batch, in nats.

    n_c is the client's number of training samples of class c.

    Attributes:
        gamma: Exponent of the counts, >= 0; 0^0 is 1, so that 0 gives cross entropy.
        literal: Whether a class without samples has the factor 0; otherwise it counts as 1 sample.
        weight: Factor of the term.
    """

    gamma: float
    literal: bool
    weight: float | str = 1.0

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            counts = context.ctx[COUNTS].to(wide(logits))  # [C]
            counts = counts if self.literal else counts.clamp_min(1.0)
            prior = counts.pow(self.gamma).log()  # [C], -inf for a class that leaves the softmax
            return mean_cross_entropy(logits.to(prior.dtype) + prior, batch.y, batch.mask)


@dataclass(frozen=True)
class PersonalCrossEntropy:
    """L_P: mean cross entropy of sg(o) + W_i sg(z) + b_i, in nats; only the head has a gradient.

    Attributes:
        head: The personal head.
        weight: Factor of the term.
    """

    head: PersonalHead
    weight: float | str = 1.0

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        out = self.outputs(context)
        return mean_cross_entropy(out.logits, context.batch.y, context.batch.mask)

    def outputs(self, context: StepContext) -> Outputs:
        """Return the features z [B, D] and the logits o_i [B, C], detached from the net."""
        features, logits = context.out.features.detach(), context.out.logits.detach()
        own = self.head(context.leaves, context.ctx).values()  # W_i [C, D], b_i [C]
        return Outputs(features, logits + linear(features, *own))
