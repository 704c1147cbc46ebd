"""FedRoD: a generic head for all clients and a personal one on top of it (Chen, Chao, 2022)."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.algorithms.shared.second import Second
from flbench.losses.cross_entropy import CrossEntropy, mean_cross_entropy
from flbench.losses.similarity import full_precision, wide

OWN = "own."  # prefix of a personal head that the client keeps
COUNTS = "held.counts"  # ctx entry [C]: the client's number of samples of each class


@fl.ALGORITHMS.register("fedrod")
class FedRoD(fl.Algorithm):
    """A shared net learns a class-balanced loss; a personal head adds to its logits.

    Client i, one phase on all of body, generic head (W, b) and personal head (W_i, b_i), with its
    number of samples n_c of class c, features z and no gradient through sg:

        o   = W z + b
        L_G = CE(o + gamma log n, y)                      balanced softmax, for body, W and b
        o_i = sg(o) + W_i sg(z) + b_i
        L_P = CE(o_i, y)                                  for the personal head alone
        L   = L_G + L_P

    Server: body, W, b <- sum_i p_i of them, with p_i = n_i / sum_j n_j. `personal` has the logits
    o + W_i z + b_i of the newest shared net; `generic`, evaluated on each client's samples, and
    `gm` have o. Class counts are no part of a prediction.

    Readings, since no code of the authors is public: L_P reaches neither body nor generic head, and
    the personal logits are added to the generic ones. W_i and b_i start at zero, so that the
    personal head is no correction at first; other code starts from a copy of W, with which
    o_i = 2 o. The paper's second variant, a hypernetwork that makes the personal heads, is not
    here. A class without samples leaves the softmax of L_G, so that its row of W has no gradient; a
    client with one class does not move the shared net, and is averaged nevertheless.

    The paper evaluates personal models right after local training; here they have the newest shared
    net. `train.clip` limits one norm over the gradients of both losses. The logged training loss is
    the sum of both. Terms of `train.terms` act on L_P.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedRoD."""

        gamma: float = Field(
            1.0,
            ge=0,
            description="exponent of the class counts in the loss of the generic head; 0 is cross"
            " entropy",
        )

    config: Config
    paper = fl.Paper(
        "On Bridging Generic and Personalized Federated Learning for Image Classification",
        "Chen, Chao",
        "ICLR 2022 (arXiv 2107.00778)",
    )
    communication = fl.Communication(down="w", up="w", keeps="a head")
    needs = (fl.LINEAR_HEAD,)

    @property
    def own(self) -> Second:
        """The personal head."""
        return Second(OWN, self.linear_head.names)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        zeros = {name: torch.zeros_like(start[name]) for name in self.linear_head.names}
        return server, clients | fl.repeat(self.own.start(zeros), self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        train = self.phase(
            fl.Term(1.0, fl.bind(balanced_cross_entropy, self.config.gamma)),
            PersonalCrossEntropy(head=self.linear_head),
            train=self.own.leaves | {*self.setting.net.parameters},
        )
        count = fl.Statistic("held", CountClasses(self.setting.classes))
        return fl.LocalProgram((count, train), keeps | self.own.leaves, sends)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        generic = models.pop("personal")
        both = replace(generic, weights=fl.bind(whole_head, self.own))
        return {"personal": both, "generic": generic} | models


def whole_head(context: fl.Context, own: Second) -> fl.Tree:
    """Return W + W_i and b + b_i under the names of the net's head."""
    return {name: context.leaves[name] + value for name, value in own(context).items()}


def balanced_cross_entropy(context: fl.Context, gamma: float) -> Tensor:
    """Return L_G, 0-dim: mean of -log(n_y^gamma exp(o_y) / sum_c n_c^gamma exp(o_c)), in nats.

    n_c is the client's number of samples of class c. 0^0 is 1, so that gamma = 0 is cross entropy.
    """
    logits, batch = context.out.logits, context.batch
    with full_precision(logits):
        counts = context.ctx[COUNTS].to(wide(logits))  # [C]
        prior = counts.pow(gamma).log()  # [C], -inf for a class that leaves the softmax
        return mean_cross_entropy(logits.to(prior.dtype) + prior, batch.y, batch.mask)


@dataclass(frozen=True, kw_only=True)
class PersonalCrossEntropy(CrossEntropy):
    """L_P: mean cross entropy of sg(o) + W_i sg(z) + b_i, in nats; only the head has a gradient.

    Attributes:
        head: The head of the net.
    """

    head: fl.LinearHead

    def outputs(self, context: fl.Context) -> fl.Outputs:
        """Return the features z [B, D] and the logits o_i [B, C], detached from the net."""
        features, logits = context.out.features.detach(), context.out.logits.detach()
        return fl.Outputs(features, logits + self.head(context.leaves, features, prefix=OWN))
