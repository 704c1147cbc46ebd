"""DFedAlt: a personal head, a body mixed with neighbours, trained in turn (Shi et al., 2023)."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from flbench.algorithms.base import Communication, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.gossip import Gossip, GossipConfig
from flbench.algorithms.shared.sharpness import Sharpness
from flbench.client.program import Step
from flbench.config.schema import AlgorithmConfig, epochs


class DFedAltConfig(GossipConfig):
    """Keys of DFedAlt."""

    head_epochs: int = epochs(1, "on the head, first")
    body_epochs: int | None = epochs(
        None, "on the body, then (default: the rest of train.local_epochs, at least one)"
    )
    head_lr: float | None = Field(
        None, ge=0, description="learning rate of the head (default train.optimizer.lr)"
    )
    head_batchnorm: Literal["eval", "train"] = Field(
        "eval",
        description="while the head is trained BatchNorm statistics of the body stand still, or"
        " move",
    )
    rho: float = Field(
        0.0, ge=0, description="radius of the sharpness-aware body step (DFedSalt); 0 for none"
    )


@ALGORITHMS.register("dfedalt")
class DFedAlt(Gossip):
    """Local: k_v epochs on the head v (u frozen), then k_u on the body u (v frozen), SGD for each.

    Then u_i <- sum_l w_il u_l. The paper's text was not at hand: order and epochs are those of its
    authors' later code, which mixes before it trains. The sequence is the same, but that code
    evaluates models before mixing: they are `personal@local` here. Its learning rates are 0.1 for u
    and 0.001 for v.
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
        c, private = self.config, self.personal()
        head = self.phase(*self.terms(), train=self.trainable() & private, epochs=c.head_epochs)
        lr = head.optimizer.lr if c.head_lr is None else c.head_lr
        optimizer = head.optimizer.model_copy(update={"lr": lr})
        head = replace(head, optimizer=optimizer, batchnorm=c.head_batchnorm)
        shared = self.trainable() - private
        body = self.phase(*self.terms(), train=shared, epochs=self.body_epochs())
        return (head, replace(body, gradient=Sharpness(c.rho)) if c.rho else body)

    def body_epochs(self) -> int:
        """Return k_u: both phases together take E epochs where nothing else is said."""
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
