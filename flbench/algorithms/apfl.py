"""APFL: each client evaluates a mixture of its own model and the global model.

Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020.
"""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.second import Second
from flbench.client.batchnorm import recalibrate
from flbench.losses import CrossEntropy

V = "v."  # prefix of the local model's parameters
ALPHA = "alpha"  # the leaf with the share of the local model, 0-dim per client


@fl.ALGORITHMS.register("apfl")
class APFL(fl.Algorithm):
    """A client trains w and, on the same batches, its own v in vbar = alpha v + (1 - alpha) w.

    Client i (Algorithm 1), first alpha with the first batch of the round (`adaptive`), then all
    batches:

        alpha_i <- clip(alpha_i - eta <v_i - w_i, grad f(vbar_i)>, 0, 1)
        w_i     <- w_i - eta grad f(w_i)
        v_i     <- v_i - eta alpha_i grad f(vbar_i)

    The last two are simultaneous, as in the paper: the gradient for v_i reads w_i as it was before
    the step on this batch. The client sends w_i, which is averaged uniformly, and keeps v_i and
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

    @property
    def v(self) -> Second:
        """The local model, without BatchNorm statistics."""
        return Second(V, self.setting.net.parameters)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        own = self.v.start(start)
        own[ALPHA] = next(iter(own.values())).new_full((), self.config.alpha)
        return server, clients | fl.repeat(own, self.setting.clients)

    def terms(self) -> tuple[fl.LossTerm, ...]:
        return (*super().terms(), MixtureCrossEntropy(v=self.v))

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        train = self.phase(*self.terms(), train=self.v.leaves | {*self.v.names})
        steps = (self.adapt(), train) if self.config.adaptive else (train,)
        return fl.LocalProgram(steps, keeps | self.v.leaves | {ALPHA}, sends)

    def adapt(self) -> fl.Phase:
        """Return one step of plain gradient descent on alpha, with the first batch of the round."""
        sgd = {"name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
        return self.phase(
            MixtureCrossEntropy(v=self.v),
            train=frozenset({ALPHA}),
            optimizer=self.setting.train.optimizer.model_copy(update=sgd),
            steps=1,
            clip=None,
            project=clip_alpha,
        )

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        vbar = fl.bind(mixture, self.v)
        # With `train.batchnorm=drop` the evaluation estimates the statistics of every model.
        drops = self.setting.train.batchnorm == "drop"
        estimate = () if drops else recalibrate(self.setting.net, vbar)
        program = fl.LocalProgram(estimate) if estimate else None
        personal = fl.Deployment(self.dispatch(state, ids), program, vbar)
        return super().deploy(state, ids) | {"personal": personal}


def mixture(context: fl.Context, v: Second) -> fl.Tree:
    """Return the parameters of the personal model, alpha v + (1 - alpha) w."""
    w, alpha = context.leaves, context.leaves[ALPHA]
    return {name: alpha * own + (1 - alpha) * w[name] for name, own in v(context).items()}


@dataclass(frozen=True, kw_only=True)
class MixtureCrossEntropy(CrossEntropy):
    """Mean cross entropy of the personal model, with no gradient for w.

    The gradient for v is alpha times the gradient at the personal model, and the gradient for alpha
    is the inner product of v - w with the gradient at the personal model.

    Attributes:
        v: The local model.
    """

    v: Second

    def outputs(self, context: fl.Context) -> fl.Outputs:
        """Return the outputs of the personal model."""
        w = {name: context.leaves[name].detach() for name in self.v.names}
        fixed = context.with_leaves(context.leaves | w)
        return context.apply(fixed.leaves | mixture(fixed, self.v), context.batch.x, train=True)


def clip_alpha(context: fl.Context) -> fl.Tree:
    """Return alpha, limited to [0, 1]."""
    return {ALPHA: context.leaves[ALPHA].clamp(0.0, 1.0)}
