"""Per-FedAvg: a global model from which one gradient step personalizes (Fallah et al., 2020)."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("perfedavg")
class PerFedAvg(fl.Algorithm):
    """The server learns a model w whose loss after one gradient step at a client is small.

    Client, for each batch, whose rows are divided into parts a, a' (and a'' for the Hessian):

        u  = w - alpha grad CE(w; a)
        g' = grad CE(u; a')
        w <- w - eta g'                                              version=first_order
        w <- w - eta (g' - alpha h)                                  version=hessian_free
        h  = (grad CE(w + delta g'; a'') - grad CE(w - delta g'; a'')) / (2 delta)

    h approximates the Hessian at w (not at u) times g'. eta is `train.optimizer.lr`, beta of the
    paper, which takes 0.001 and alpha 0.01. Server: w <- mean of w_i over the cohort, uniform as in
    Algorithm 1. A client is evaluated with w after one step of size alpha on a batch of
    its own training samples, on a copy, and as `noft` with w itself; `gm` is w.

    Readings and deviations. The paper draws three independent batches; here row j of a batch is in
    part j mod 2, or j mod 3 with a'', so that a round costs as many samples as one of FedAvg: set
    `train.batch_size` to two or three times the paper's. A part without a row, as in a batch of one
    sample, is the whole batch. A step costs two or four gradients. Weight decay and clipping of
    `train.*` act on the step of w, not on the step to u. The logged training loss is that of w on
    a. BatchNorm normalizes with the whole batch, and its statistics are updated in each of the two
    or four passes, also at u and w +- delta g'. The batches of the evaluation are those that the
    client would train with in the last round.

    The Hessian makes steps long where the loss is curved: with alpha and eta near 0.1, training
    may diverge unless `train.clip` is set.
    """

    class Config(fl.UniformConfig):
        """Keys of Per-FedAvg."""

        version: Literal["first_order", "hessian_free"] = Field(
            "first_order",
            description="treatment of the Hessian: left out (first order), or its product with the"
            " gradient by a difference of two gradients (Hessian-free)",
        )
        alpha: float = Field(
            0.01,
            ge=0,
            description="length of the personalizing step, in training and in the evaluation;"
            " train.schedule does not scale it",
        )
        delta: float = Field(
            1e-3, gt=0, description="version=hessian_free: step of the difference of gradients"
        )

    config: Config
    paper = fl.Paper(
        "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic"
        " Meta-Learning Approach",
        "Fallah, Mokhtari, Ozdaglar",
        "NeurIPS 2020 (arXiv 2002.07948)",
    )
    communication = fl.Communication(down="w", up="w", keeps="nothing")
    needs = (fl.PLAIN_SGD,)

    def notes(self) -> list[str]:
        if not self.setting.net.statistics:
            return []
        return [
            "perfedavg: BatchNorm statistics are updated at several points in each step and belong"
            " to no single model; model.norm=group has none."
        ]

    def program(self, state: fl.State) -> fl.LocalProgram:
        c = self.config
        gradient = fl.bind(meta_gradient, c.alpha, c.delta if c.version == "hessian_free" else None)
        return fl.LocalProgram((self.phase(*self.terms(), gradient=gradient),), *self.split())

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        plain = models.pop("personal")
        personal = replace(plain, program=fl.LocalProgram((self.adaptation(state),)))
        return {"personal": personal, "noft": plain} | models

    def adaptation(self, state: fl.State) -> fl.Phase:
        """Return the personalizing step before an evaluation of the state."""
        setting = self.setting
        # The learning rate of an evaluation is scaled as in the round before it; alpha is not.
        factor = setting.train.schedule.lr_factor(max(0, state.round - 1), setting.rounds)
        sgd = fl.OptimizerConfig(lr=self.config.alpha / factor)
        return self.phase(*self.terms(), optimizer=sgd, clip=None, steps=1)


def meta_gradient(
    context: fl.Context, grad: fl.GradFn, alpha: float, delta: float | None
) -> fl.Tree:
    """Return g' of a batch, or g' - alpha h if delta, the step for h, is not None."""
    trained, count = context.trained, 2 if delta is None else 3
    inner, outer, *rest = (part(context.batch, k, count) for k in range(count))

    first = grad(trained, inner)
    g = grad({n: w - alpha * first[n] for n, w in trained.items()}, outer)  # at u
    if delta is None:
        return g
    plus = grad({n: w + delta * g[n] for n, w in trained.items()}, rest[0])
    minus = grad({n: w - delta * g[n] for n, w in trained.items()}, rest[0])
    return {n: v - alpha * (plus[n] - minus[n]) / (2 * delta) for n, v in g.items()}


def part(batch: fl.Batch, k: int, count: int) -> fl.Batch:
    """Return a batch in which only the rows j with j mod count = k count.

    If no valid row is among them, all rows of the batch count.
    """
    rows = torch.arange(len(batch.mask), device=batch.mask.device)
    mask = batch.mask & (rows % count == k)
    return batch._replace(mask=torch.where(mask.any(), mask, batch.mask))
