"""A two-layer projection between backbone and classifier, for methods that contrast its outputs.

It replaces the net's classifier: leaves `projection.*`, seeded as PyTorch seeds linear layers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flbench.algorithms.base import Setting
from flbench.algorithms.shared.memory import Stored
from flbench.client.program import LossTerm
from flbench.core.rng import torch_seed
from flbench.core.types import Outputs, StepContext, Tree

PREFIX = "projection."
LAYERS = ("fc1", "fc2", "head")
NAMES = tuple(f"{PREFIX}{layer}.{leaf}" for layer in LAYERS for leaf in ("weight", "bias"))


def names(width: int | None) -> tuple[str, ...]:
    """Return the names of its leaves; none without a projection, `width` None."""
    return () if width is None else NAMES


def seeded(setting: Setting, width: int | None, start: Tree) -> Tree:
    """Return the leaves: D -> D, ReLU, D -> width, and a classifier width -> C; none for None."""
    if width is None:
        return {}
    dtype = start[setting.net.parameters[0]].dtype
    sizes = (setting.net.features, setting.net.features, width, setting.classes)
    leaves: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(setting.seed, "method"))
        # In float32 whatever the precision, as the net is.
        for k in (0, 1, 2):
            layer = nn.Linear(sizes[k], sizes[k + 1])
            leaves += [layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)]
    return dict(zip(NAMES, leaves, strict=True))


def project(leaves: Tree, out: Outputs) -> Outputs:
    """Return the projected features [B, width] and their logits."""
    fc1, fc2, head = (
        partial(
            nn.functional.linear,
            weight=leaves[f"{PREFIX}{layer}.weight"],
            bias=leaves[f"{PREFIX}{layer}.bias"],
        )
        for layer in LAYERS
    )
    features = fc2(fc1(out.features).relu())
    return Outputs(features, head(features), out.activations)


def projected(context: StepContext) -> StepContext:
    """Return the view of one step as if the projection were part of the net."""

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
    """A loss term that sees projected features and their logits instead of the net's."""

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
    """How a Deployment predicts: the logits of the projected features.

    Attributes:
        stored: which projection, if not the client's present one.
    """

    stored: Stored | None = None

    def __call__(self, context: StepContext) -> Tensor:
        """Return the logits [B, C]."""
        own = context.leaves if self.stored is None else self.stored(context.leaves, context.ctx)
        return project(own, context.out).logits


def terms(width: int | None, *some: LossTerm) -> tuple[LossTerm, ...]:
    """Return loss terms that see projected features, if there is a projection."""
    return some if width is None else tuple(Projected(term) for term in some)


def scores(width: int | None, stored: Stored | None = None) -> ProjectedScores | None:
    """Return how a Deployment predicts; None for the net's own logits, without a projection."""
    return None if width is None else ProjectedScores(stored)
