"""APFL: each client evaluates a mixture of its own model and the global model.

Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020.
"""

from dataclasses import dataclass, replace

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.memory import Copy
from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
from flbench.client.batchnorm import recalibrate
from flbench.losses.cross_entropy import mean_cross_entropy

V = "v."  # prefix of the local model's parameters
ALPHA = "alpha"  # the leaf with the share of the local model, 0-dim per client


@dataclass(frozen=True)
class Mixture:
    """The personal model alpha v + (1 - alpha) w as context -> what the net is called with.

    Attributes:
        names: Names of all leaves of the net, in order.
        parameters: Those that are mixed. The others are BatchNorm statistics, which v lacks.
    """

    names: tuple[str, ...]
    parameters: frozenset[str]

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the mixed parameters, and the buffers of the leaves, under the net's names."""
        leaves = context.leaves
        alpha = leaves[ALPHA]  # []
        return {
            name: alpha * leaves[V + name] + (1 - alpha) * leaves[name]
            if name in self.parameters
            else leaves[name]
            for name in self.names
        }


@dataclass(frozen=True)
class MixtureLoss:
    """Mean cross entropy of the personal model, with no gradient for w.

    The gradient for v is alpha times the gradient at the personal model, and the gradient for alpha
    is the inner product of v - w with the gradient at the personal model.

    Attributes:
        model: The personal model.
        weight: Factor of the term.
    """

    model: Mixture
    weight: float | str = 1.0

    def __call__(self, context: fl.Context) -> Tensor:
        """Return the mean cross entropy in nats, 0-dim."""
        logits = self.outputs(context).logits  # [B, C]
        return mean_cross_entropy(logits, context.batch.y, context.batch.mask)

    def outputs(self, context: fl.Context) -> fl.Outputs:
        """Return the outputs of the personal model."""
        w = {name: context.leaves[name].detach() for name in self.model.names}
        mixed = self.model(context.with_leaves({**context.leaves, **w}))
        return context.apply(mixed, context.batch.x, train=True)


@dataclass(frozen=True)
class ClipAlpha:
    """Writes alpha, limited to [0, 1]; a Phase calls it after each optimizer step."""

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return alpha."""
        return {ALPHA: context.leaves[ALPHA].clamp(0.0, 1.0)}


@fl.ALGORITHMS.register("apfl")
class APFL(fl.Algorithm):
    """A client trains w and, on the same batches, its own v in vbar = alpha v + (1 - alpha) w.

    Local (Algorithm 1): alpha_i takes a gradient step on f(vbar_i) with the first batch of the
    round, alpha_i <- alpha_i - eta <v_i - w_i, grad f(vbar_i)>, and is clipped to [0, 1] (with
    `adaptive`). In every step, w_i takes a step on f(w_i), and v_i takes a step on f(vbar_i). The
    steps are simultaneous, as in the paper: the gradient for v_i reads w_i as it was before the
    step on this batch. The client sends w_i, which is averaged uniformly, and keeps v_i and
    alpha_i. vbar_i with the server's w is evaluated.

    The authors' code (FedTorch) differs from the paper, and from this method, in four points. It
    mixes the logits of v_i and w_i, not their parameters. w_i takes its step on a batch before v_i
    does. alpha_i takes its step after them, with the gradients of that batch. And 0.02 alpha_i is
    added to the gradient for alpha_i, which pulls to the global model.

    Where the paper is silent, and deviations:

    - alpha_i takes a step of plain gradient descent with the learning rate of the round. Momentum,
      weight decay, Adam and `train.clip` of `train.*` apply to w_i and v_i only.
    - `train.clip` limits the norm of the gradients for w_i and v_i together.
    - The training loss that is logged is the mean over all steps of f(w_i) + f(vbar_i), and of
      f(vbar_i) for the step on alpha_i.
    - vbar_i has no BatchNorm statistics of its own. It uses those of the batch in training, and
      they are estimated anew from the client's training samples before each evaluation, whatever
      `train.batchnorm` is. Statistics of w_i follow `train.batchnorm`.
    """

    class Config(fl.UniformConfig):
        """Keys of APFL."""

        alpha: float = Field(
            0.5,
            ge=0,
            le=1,
            description="share of the local model v in the personal model alpha v + (1 - alpha) w;"
            " with adaptive=true, its value before a client's first round",
        )
        adaptive: bool = Field(
            True,
            description="whether each client adapts its alpha by a gradient step in each round",
        )

    config: Config
    paper = fl.Paper(
        "Adaptive Personalized Federated Learning",
        "Deng, Kamani, Mahdavi",
        "2020 (arXiv 2003.13461)",
    )
    communication = fl.Communication(down="w", up="w", keeps="v, as large as w, and alpha")

    def terms(self) -> tuple[fl.LossTerm, ...]:
        return (*super().terms(), MixtureLoss(self.mixture()))

    def mixture(self) -> Mixture:
        """Return the personal model."""
        return Mixture(self.setting.net.leaves, frozenset(self.setting.net.parameters))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        names = self.setting.net.parameters
        own = prefixed(V, fl.only(start, names))
        own[ALPHA] = start[names[0]].new_full((), self.config.alpha)
        return server, clients | fl.repeat(own, self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        names = self.setting.net.parameters
        v = prefixed_names(V, names)

        train = self.phase(*self.terms(), train=frozenset(names) | v)
        steps = (self.adapt(), train) if self.config.adaptive else (train,)

        keeps, sends = self.split()
        return fl.LocalProgram(steps, keeps | v | {ALPHA}, sends)

    def adapt(self) -> fl.Phase:
        """Return one step of plain gradient descent on alpha, with the first batch of the round."""
        sgd = {"name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
        return replace(
            self.phase(MixtureLoss(self.mixture()), train=frozenset({ALPHA})),
            optimizer=self.setting.train.optimizer.model_copy(update=sgd),
            epochs=None,
            steps=1,
            clip=None,
            project=ClipAlpha(),
        )

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining:
        """Return what a new client does first: v begins as a copy of w."""
        names = self.setting.net.parameters
        copy = fl.LocalProgram((fl.Transform(Copy(V, names)),), prefixed_names(V, names))
        return fl.Joining(self.dispatch(state, ids), copy)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        mixture = self.mixture()
        # With `train.batchnorm=drop` the evaluation estimates the statistics of every model.
        drops = self.setting.train.batchnorm == "drop"
        estimate = () if drops else recalibrate(self.setting.net, mixture)

        personal = fl.Deployment(
            self.dispatch(state, ids),
            program=fl.LocalProgram(estimate) if estimate else None,
            weights=mixture,
        )
        return super().deploy(state, ids) | {"personal": personal}
