"""DFedAlt: clients keep the head and mix the body with neighbours (Shi et al., 2023)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from flbench.algorithms import (
    ALGORITHMS,
    AlgorithmConfig,
    Batch,
    Communication,
    GradFn,
    Paper,
    Step,
    Tree,
    epochs,
)
from flbench.algorithms.shared.gossip import Gossip, GossipConfig


class DFedAltConfig(GossipConfig):
    """Keys of DFedAlt."""

    head_epochs: int = epochs(1, "training of the head in a round, before the body")
    body_epochs: int | None = epochs(
        None,
        "training of the body in a round (default: the rest of train.local_epochs, at least one)",
    )
    head_lr: float | None = Field(
        None, ge=0, description="learning rate of the head (default: train.optimizer.lr)"
    )
    head_batchnorm: Literal["eval", "train"] = Field(
        "eval",
        description="mode of BatchNorm while the head is trained: `eval` freezes its statistics,"
        " `train` updates them",
    )
    rho: float = Field(
        0.0,
        ge=0,
        description="radius of sharpness-aware steps on the body, as in DFedSalt; 0 for plain"
        " steps",
    )


@ALGORITHMS.register("dfedalt")
class DFedAlt(Gossip):
    """Clients train a personal head v and a shared body u in turn, and mix bodies with neighbours.

    Local: k_v epochs on v with u frozen, then k_u epochs on u with v frozen, each with an optimizer
    of its own. Then u_i <- sum_l w_il u_l over the neighbours l and i itself.

    The paper's text was not available; order and epochs are those of its authors' later code. That
    code mixes before it trains, which gives the same sequence, but it evaluates models before they
    are mixed: `personal@local` here. Its learning rates are 0.1 for u and 0.001 for v. Deviations
    beyond that: none that are known.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DFedAltConfig
    config: DFedAltConfig
    paper = Paper(
        "Towards More Suitable Personalization in Federated Learning via Decentralized Partial"
        " Model Training",
        "Shi, Liu, Sun, Lin, Shen, Wang, Tao",
        "arXiv 2305.15157, 2023",
    )
    communication = Communication(
        down="backbone of each neighbour", up="backbone to each neighbour", keeps="w"
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def steps(self) -> tuple[Step, ...]:
        c, head_names = self.config, self.personal()

        head = self.phase(*self.terms(), train=self.trainable() & head_names, epochs=c.head_epochs)
        head = replace(head, batchnorm=c.head_batchnorm)
        if c.head_lr is not None:
            optimizer = head.optimizer.model_copy(update={"lr": c.head_lr})
            head = replace(head, optimizer=optimizer)

        body_names = self.trainable() - head_names
        body = self.phase(*self.terms(), train=body_names, epochs=self.body_epochs())
        if c.rho:
            body = replace(body, gradient=Sharpness(c.rho))

        return (head, body)

    def body_epochs(self) -> int:
        """Return k_u: by default, both phases together take `train.local_epochs`."""
        rest = self.setting.train.local_epochs - self.config.head_epochs
        return max(1, rest) if self.config.body_epochs is None else self.config.body_epochs

    def notes(self) -> list[str]:
        c, epochs = self.config, self.setting.train.local_epochs
        total = c.head_epochs + self.body_epochs()
        if total == epochs:
            return super().notes()
        return [
            *super().notes(),
            f"epochs of a round: {c.head_epochs} on the head and {self.body_epochs()} on the body,"
            f" {total} in all instead of train.local_epochs={epochs}.",
        ]


@dataclass(frozen=True)
class Sharpness:
    """Gradient hook: the gradient at u + rho g / ||g||, g the gradient at u; g itself if it is 0.

    Source: Foret et al., ICLR 2021, eq. 2; the norm is over the trained leaves. A step runs the net
    twice, so BatchNorm in training mode counts its batch twice.

    Attributes:
        rho: Radius, >= 0.
    """

    rho: float

    def __call__(self, grad: GradFn, parameters: Tree, batch: Batch, ctx: Tree) -> Tree:
        """Return the gradient that the optimizer sees."""
        g = grad(parameters, batch)
        norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
        scale = torch.where(norm > 0, self.rho / norm, 0.0)
        return grad({name: parameters[name] + scale * g[name] for name in parameters}, batch)
