"""Ditto: each client has a second model of its own, pulled to the global one (Li et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    Deployment,
    Dispatch,
    Info,
    Joining,
    LocalProgram,
    Paper,
    Phase,
    Samples,
    State,
    Statistic,
    Step,
    StepContext,
    Transform,
    Tree,
    epochs,
    only,
    repeat,
    smallest_index,
)
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.memory import Copy
from flbench.algorithms.shared.personal_model import PersonalModel, V, personal_model
from flbench.algorithms.shared.prefixes import prefixed
from flbench.losses import CrossEntropy, Proximal
from flbench.losses.cross_entropy import sum_cross_entropy


class DittoConfig(AlgorithmConfig):
    """Keys of Ditto."""

    lam: float = Field(
        1.0,
        ge=0,
        description="factor of the pull of the personal model to the global one; 0 is Local-Only",
    )
    personal_epochs: int | None = epochs(
        None, "training of the personal model in a round (default: train.local_epochs)"
    )
    lam_choices: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (),
        description="instead of lam: in every round each client trains its personal model once with"
        " each of these factors and keeps the result with the lowest loss on its validation part;"
        " one that diverges makes the client fail",
    )
    anchor: Literal["received", "trained"] = Field(
        "received",
        description="what the personal model is pulled to: the global model as received (the"
        " paper), or after the client's own training of it (FedNH's code)",
    )


@ALGORITHMS.register("ditto")
class Ditto(Algorithm):
    """A client trains the global model as in FedAvg, and a personal model that is pulled to it.

    Local (Algorithm 1): w_i is trained from w on cross entropy, then v_i on cross entropy +
    lam/2 ||v_i - w||^2. The client sends w_i and keeps v_i, which has BatchNorm statistics of its
    own and is evaluated. Both trainings see the same batches in the same order.

    Deviations: the authors' code alternates both models batch by batch and averages differences of
    weights, uniformly. The pull is to the received w, so the order does not change what is
    computed; the mean is weighted by samples (`agg_weights=uniform` for the authors'). With
    `lam_choices` each client chooses lam by validation, as in the paper, but in every round;
    validation metrics are then of models that were chosen on the same samples.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DittoConfig
    config: DittoConfig
    paper = Paper(
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li, Hu, Beirami, Smith",
        "ICML 2021",
    )
    communication = Communication(down="w", up="w", keeps="v, as large as w")

    def notes(self) -> list[str]:
        lam, optimizer = max(self.factors()), self.setting.train.optimizer
        is_sgd = optimizer.name == "sgd" and not self.setting.own_optimizer
        if not is_sgd or lam * optimizer.lr < 1:
            return []
        return [
            f"ditto: lam={lam:g} times train.optimizer.lr is {lam * optimizer.lr:g}: from 1 on"
            " the personal model overshoots the global one, from 2 on it diverges."
        ]

    def factors(self) -> tuple[float, ...]:
        """Return the values of lam that v is trained with, one after the other."""
        return self.config.lam_choices or (self.config.lam,)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        v = prefixed(V, only(start, personal_model(self.setting).own))
        return server, clients | repeat(v, self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        v = personal_model(self.setting)

        train_w = self.phase(*self.terms())
        train_v: tuple[Step, ...] = tuple(self.personal_phase(lam) for lam in self.factors())
        if len(train_v) > 1:
            train_v = best_of(train_v, v, reestimate_batchnorm(self.setting, v))

        return LocalProgram((train_w, *train_v), keeps | {*v.leaves()}, sends)

    def personal_phase(self, lam: float) -> Phase:
        """Return the training of v with one value of lam; w does not change."""
        names = self.setting.net.parameters
        anchor: Literal["start", "now"] = "start" if self.config.anchor == "received" else "now"
        phase = self.phase(
            CrossEntropy(),
            Proximal(names, lam, prefix=V, anchor=anchor),
            train=frozenset(V + name for name in names),
            epochs=self.config.personal_epochs,
        )
        return replace(phase, weights=personal_model(self.setting))

    def join(self, state: State, ids: Tensor) -> Joining:
        """Return what a new client does first: v begins as a copy of w."""
        v = personal_model(self.setting)
        copy = Transform(Copy(V, tuple(name for name in v.names if name in v.own)))
        return Joining(self.dispatch(state, ids), LocalProgram((copy,), frozenset(v.leaves())))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        personal = Deployment(Dispatch(), weights=personal_model(self.setting))
        return super().deploy(state, ids) | {"personal": personal}


def best_of(
    trainings: Sequence[Step], model: PersonalModel, estimate: tuple[Step, ...]
) -> tuple[Step, ...]:
    """Return the steps that train a model in several ways and keep the best result.

    The best one has the smallest cross entropy on the client's validation part; without validation
    samples it is the first. The leaf `choice` holds its index. Each training begins with the
    model as it was at the beginning of the program.

    Args:
        trainings: Phases that train the model, at least one.
        model: The personal model.
        estimate: Steps before each validation that estimate BatchNorm statistics, or none.
    """
    names = model.leaves()
    steps: list[Step] = []
    for k, training in enumerate(trainings):
        validate = Statistic(f"try{k}", SumLoss(model), samples=Samples("validation"))
        steps += [
            Transform(Rewind(names)),
            training,
            *estimate,
            validate,
            Transform(Copy(f"try{k}.", names)),
        ]
    return (*steps, Transform(TakeBest(names, len(trainings))))


@dataclass(frozen=True)
class Rewind:
    """Writes the leaves `names` as they were at the beginning of the program."""

    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return these leaves."""
        return only(start, self.names)


@dataclass(frozen=True)
class SumLoss:
    """Sum of the model's cross entropy over a batch, float64."""

    model: PersonalModel

    def __call__(self, context: StepContext) -> Tree:
        """Return the sum, `loss`."""
        leaves = self.model(context.leaves, context.ctx)
        logits = context.apply(leaves, context.batch.x).logits.double()  # [B, C]
        return {"loss": sum_cross_entropy(logits, context.batch.y, context.batch.mask)}


@dataclass(frozen=True)
class TakeBest:
    """Writes the leaves of the training with the smallest loss, and its index into `choice`.

    Attributes:
        names: Names of the model's leaves.
        count: Number of trainings.
    """

    names: tuple[str, ...]
    count: int

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return these leaves."""
        losses = torch.stack([ctx[f"try{k}.loss"] for k in range(self.count)])  # [count]
        best = smallest_index(losses, info.lr.dtype)
        taken: Tree = {"choice": best}
        for name in self.names:
            results = torch.stack([leaves[f"try{k}.{name}"] for k in range(self.count)])
            taken[name] = results[best]
        return taken
