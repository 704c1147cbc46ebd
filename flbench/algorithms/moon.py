"""MOON: a contrast between a client's model, the global one and its last one (Li et al., 2021)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    Deployment,
    LocalProgram,
    LossTerm,
    Outputs,
    Paper,
    Results,
    Setting,
    State,
    StepContext,
    Transform,
    Tree,
    Update,
    repeat,
    torch_seed,
    weighted_mean,
)
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.memory import Copy, LastModel
from flbench.losses import CrossEntropy, ModelContrast

PREVIOUS = "prev."  # prefix of the client's model of its last participation
RECEIVED = "received."  # prefix of BatchNorm statistics of the received model

PROJECTION_LAYERS = ("fc1", "fc2", "head")
PROJECTION = tuple(
    f"projection.{layer}.{leaf}" for layer in PROJECTION_LAYERS for leaf in ("weight", "bias")
)


class MoonConfig(AlgorithmConfig):
    """Keys of MOON."""

    mu: float = Field(
        5.0,
        ge=0,
        description="factor of the contrastive term (the paper: 5 on CIFAR-10, 1 on CIFAR-100 and"
        " Tiny-ImageNet; tune 0.001 to 10)",
    )
    tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")
    proj_dim: int | None = Field(
        None,
        ge=1,
        description="output width of a two-layer projection before the classifier (the authors:"
        " 256; default: no projection)",
    )
    evaluated: Literal["global", "last"] = Field(
        "global",
        description="the model that is evaluated: the global one, or the client's model of its last"
        " participation",
    )


@ALGORITHMS.register("moon")
class Moon(Algorithm):
    """Clients pull their features to the global model's, and away from those of their last model.

    Local loss (Algorithm 1): cross entropy + mu l_con, where for the features z of the trained
    model, z_g of the received one and z_p of the client's last one

        l_con = -log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau))).

    The server averages as FedAvg does. Clients keep their last model while they are absent. At the
    first participation it is the received model: l_con is then ln 2 and has no gradient. With mu =
    0 the method equals FedAvg to the bit.

    mu is 5 by default, the paper's best value on CIFAR-10; its best value on CIFAR-100 and
    Tiny-ImageNet is 1.

    Deviations: there is no projection by default, so that all methods train the same net. With one
    (`proj_dim`), its classifier replaces the net's. The two reference models run in eval mode with
    their own BatchNorm statistics, which `train.batchnorm=drop` re-estimates.
    """

    Config: ClassVar[type[AlgorithmConfig]] = MoonConfig
    config: MoonConfig
    paper = Paper(
        "Model-Contrastive Federated Learning",
        "Li, He, Song",
        "CVPR 2021",
        "10.1109/CVPR46437.2021.01057",
    )
    communication = Communication(down="w", up="w", keeps="w of its last participation")

    @property
    def has_projection(self) -> bool:
        """Whether features are projected before the classifier."""
        return self.config.proj_dim is not None

    def last_model(self) -> LastModel:
        """Return the client's model of its last participation, buffers and projection included."""
        projection = PROJECTION if self.has_projection else ()
        return LastModel(PREVIOUS, self.setting.net.leaves + projection)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        if self.has_projection:  # its classifier replaces the net's
            sends = (sends - self.setting.net.names("head")) | {*PROJECTION}
        return keeps, sends

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        projection = seeded_projection(self.setting, self.config.proj_dim, start)
        clients_count = self.setting.clients

        server, clients = super().init(start | projection)
        clients |= repeat(projection, clients_count)
        clients |= self.last_model().rows(start | projection, clients_count)
        return server, clients

    def terms(self) -> tuple[LossTerm, ...]:
        contrast = ModelContrast(self.last_model().names, self.config.mu, self.config.tau)
        terms: tuple[LossTerm, ...] = (CrossEntropy(), contrast)
        return tuple(Projected(term) for term in terms) if self.has_projection else terms

    def program(self, state: State) -> LocalProgram:
        net, last = self.setting.net, self.last_model()
        keeps, sends = self.split()
        # The projection is kept as well as sent, so that clients have its seeded values at first.
        keeps |= last.kept() | (sends - net.names("all"))

        trained = sends & {*net.parameters, *PROJECTION}
        train = self.phase(*self.terms(), train=trained)

        # With train.batchnorm=drop the reference models need statistics of this client's samples.
        estimate = reestimate_batchnorm(self.setting)
        statistics = tuple(name for name in last.names if name in net.statistics)
        received = (Transform(Copy(RECEIVED, statistics)),) if estimate else ()

        steps = (*estimate, last.recall(), *received, train, *estimate, last.remember())
        return LocalProgram(steps, keeps, sends)

    def aggregate(self, state: State, results: Results) -> Update:
        # Unlike `self.mean`, this mean includes the projection.
        return Update(weighted_mean(results.sent.values, self.weights(results)))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        models = super().deploy(state, ids)
        if self.has_projection:
            scores = ProjectedScores()
            models = {name: replace(model, predict=scores) for name, model in models.items()}

        if self.config.evaluated == "last":
            net = LastModel(PREVIOUS, self.setting.net.leaves)
            projection = LastModel(PREVIOUS, PROJECTION)
            models["personal"] = replace(
                models["personal"],
                weights=net,
                predict=ProjectedScores(projection) if self.has_projection else None,
            )
        return models

    def notes(self) -> list[str]:
        plain = not self.has_projection and self.config.evaluated == "global"
        return ["algorithm.mu=0: MOON is FedAvg."] if plain and self.config.mu == 0 else []


def seeded_projection(setting: Setting, width: int | None, start: Tree) -> Tree:
    """Return the leaves of a projection, initialized as PyTorch initializes linear layers.

    The layers are D -> D, ReLU, D -> width, and a classifier width -> C.

    Args:
        setting: What the method knows of the experiment; the seed is taken from it.
        width: Output width of the projection; None for no projection and no leaves.
        start: Leaves of the seeded net, for their type.
    """
    if width is None:
        return {}
    dtype = start[setting.net.parameters[0]].dtype
    sizes = (setting.net.features, setting.net.features, width, setting.classes)
    leaves: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(setting.seed, "method"))
        # In float32 whatever the precision of the run, as the net is.
        for k in (0, 1, 2):
            layer = nn.Linear(sizes[k], sizes[k + 1])
            leaves += [layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)]
    return dict(zip(PROJECTION, leaves, strict=True))


def project(leaves: Tree, out: Outputs) -> Outputs:
    """Return the net's outputs with projected features [B, width] and their logits [B, C]."""
    fc1, fc2, head = (
        partial(
            nn.functional.linear,
            weight=leaves[f"projection.{layer}.weight"],
            bias=leaves[f"projection.{layer}.bias"],
        )
        for layer in PROJECTION_LAYERS
    )
    features = fc2(fc1(out.features).relu())  # [B, D] -> [B, width]
    return Outputs(features, head(features), out.activations)


def projected(context: StepContext) -> StepContext:
    """Return the context of a step as if the projection were a part of the net."""

    def apply(leaves: Tree, x: Tensor, **options: Any) -> Outputs:
        return project(leaves, context.apply(leaves, x, **options))

    return StepContext(
        lambda: project(context.leaves, context.out),
        batch=context.batch,
        ctx=context.ctx,
        leaves=context.leaves,
        start=context.start,
        apply=apply,
    )


@dataclass(frozen=True)
class Projected:
    """A loss term on projected features and their logits instead of the net's.

    Attributes:
        term: The loss term.
    """

    term: LossTerm

    @property
    def weight(self) -> float | str:
        """Factor of the term."""
        return self.term.weight

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        return self.term(projected(context))


@dataclass(frozen=True)
class ProjectedScores:
    """Scores of a Deployment: the logits of the projected features.

    Attributes:
        projection: Which projection; None for the client's present one.
    """

    projection: LastModel | None = None

    def __call__(self, context: StepContext) -> Tensor:
        """Return the logits [B, C]."""
        if self.projection is None:
            return project(context.leaves, context.out).logits
        return project(self.projection(context.leaves, context.ctx), context.out).logits
