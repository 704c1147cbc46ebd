"""DFedAlt: clients keep the head and mix the body with neighbours (Shi et al., 2023)."""

import torch
from pydantic import Field

import flbench.algorithms as fl
from flbench.algorithms.shared.gossip import Gossip
from flbench.algorithms.shared.topology import GossipConfig


@fl.ALGORITHMS.register("dfedalt")
class DFedAlt(Gossip):
    """Clients train a personal head v and a shared body u in turn, and mix bodies with neighbours.

    Local: one epoch on v with u frozen, then the rest of `train.local_epochs` (at least one) on u
    with v frozen, each with an optimizer of its own. Then u_i <- sum_l w_il u_l over the neighbours
    l and i itself.

    The paper's text was not available; order and epochs are those of its authors' later code.
    BatchNorm is in eval mode while v is trained, so that its statistics follow u alone. That
    code mixes before it trains, which gives the same sequence, but it evaluates models before they
    are mixed: `personal@local` here. Its learning rates are 0.1 for u and 0.001 for v. Deviations
    beyond that: none that are known.
    """

    class Config(GossipConfig):
        """Keys of DFedAlt."""

        head_lr: float | None = Field(
            None, ge=0, description="learning rate of the head (default: train.optimizer.lr)"
        )
        rho: float = Field(
            0.0,
            ge=0,
            description="radius of sharpness-aware steps on the body, as in DFedSalt; 0 for plain"
            " steps",
        )

    config: Config
    paper = fl.Paper(
        "Towards More Suitable Personalization in Federated Learning via Decentralized Partial"
        " Model Training",
        "Shi, Liu, Sun, Lin, Shen, Wang, Tao",
        "arXiv 2305.15157, 2023",
    )
    communication = fl.Communication(
        down="backbone of each neighbour", up="backbone to each neighbour", keeps="w"
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def steps(self) -> tuple[fl.Step, ...]:
        c, train, head = self.config, self.setting.train, self.personal()
        changed = {} if c.head_lr is None else {"lr": c.head_lr}
        train_head = self.phase(
            *self.terms(),
            train=head,
            epochs=1,
            optimizer=train.optimizer.model_copy(update=changed),
            batchnorm="eval",
        )
        train_body = self.phase(
            *self.terms(),
            train=frozenset(self.setting.net.parameters) - head,
            epochs=max(1, train.epochs_of(c.name) - 1),
            gradient=fl.bind(sharpness, c.rho) if c.rho else None,
        )
        return train_head, train_body

    def notes(self) -> list[str]:
        has_more = self.setting.train.epochs_of(self.config.name) == 1
        note = (
            "the head and the body are trained for one epoch each: two epochs in a round instead of"
            " train.local_epochs=1."
        )
        return [*super().notes(), *[note] * has_more]


def sharpness(context: fl.Context, grad: fl.GradFn, rho: float) -> fl.Tree:
    """Return the gradient at u + rho g / ||g||, where g is the gradient at u; g itself if it is 0.

    Source: Foret et al., ICLR 2021, eq. 2; the norm is over the trained leaves. A step runs the net
    twice, so BatchNorm in training mode counts its batch twice.
    """
    trained = context.trained
    g = grad(trained, context.batch)
    norm = torch.stack([value.square().sum() for value in g.values()]).sum().sqrt()
    scale = torch.where(norm > 0, rho / norm, 0.0)
    return grad({name: trained[name] + scale * g[name] for name in trained}, context.batch)
