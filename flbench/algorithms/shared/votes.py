"""How a client votes for a layer: by scores of distribution shift, once or batch by batch."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Setting
from flbench.algorithms.shared.moments import estimated
from flbench.algorithms.shared.shift import DISTANCES, REDUCE, Shift, of_means, shift_scores
from flbench.client.program import Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.types import Info, Samples, StepContext, Tree
from flbench.models.base import LayerSpec

Candidates = Literal["linear", "all"]
SAME = 1e-9  # scores this close are equal: no rounding error may decide a vote


class BallotConfig(AlgorithmConfig):
    """Who can be voted for."""

    candidates: Candidates = Field(
        "linear",
        description="layers to vote for: the linear ones behind the last convolution, or all",
    )


class VoteConfig(BallotConfig):
    """Keys of votes by scores of distribution shift."""

    distance: Literal["js", "wasserstein", "hellinger", "bhattacharyya"] = Field(
        "js", description="between scalar Gaussians, in the score of a layer"
    )
    activation: Literal["after", "before"] = Field(
        "after", description="block outputs after or before their ReLU"
    )
    inputs: Literal["channels", "given"] = Field(
        "channels",
        description="how inputs become [0, 1] in the score: by the extent of each channel at the"
        " client, or not at all (for data.normalize=unit)",
    )
    vote_samples: int | None = Field(
        1000, ge=1, description="training samples that a vote looks at; null for all"
    )
    coverage: bool = Field(
        True, description="towards the end of the votes, draw clients without one first"
    )


def vote_steps(setting: Setting, layers: tuple[LayerSpec, ...], config: VoteConfig) -> tuple[Step, ...]:
    """Return the steps of a client's vote: what it sends are the leaves `vote` and `scores`.

    One vote on the training part, in eval mode. Under `train.batchnorm=drop` the statistics are
    estimated first, as they are before evaluating.
    """
    names = tuple(layer.name for layer in layers)
    look = Shift(names, setting.classes, config.inputs, config.activation == "after")
    fresh = estimated(setting)
    rows = Samples(limit=config.vote_samples)
    vote = Statistic("shift", look, REDUCE, ScoreLayers(look, config.distance), rows)
    return (*fresh, vote, Transform(WriteVote()))


@dataclass(frozen=True)
class ScoreLayers:
    """Score every layer (FedCPMD, eq. 7) and vote for the least score; the lower one of equals."""

    look: Shift
    distance: str

    def __call__(self, found: Tree, leaves: Tree, ctx: Tree) -> Tree:
        """Return `scores` [L] float64 and `vote` []."""
        scores = shift_scores(*self.look.gaussians(found), DISTANCES[self.distance])
        return {"scores": scores, "vote": least(scores)}


@dataclass(frozen=True)
class WriteVote:
    """Write what the Statistic "shift" found into leaves that are sent: a vote and scores."""

    scores: bool = True

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return `vote` [] int32, and `scores` [L] in the precision of the weights."""
        found = {"vote": ctx["shift.vote"].to(torch.int32)}
        return found | ({"scores": ctx["shift.scores"].to(info.lr.dtype)} if self.scores else {})


def majority_of_batches(layers: tuple[str, ...], classes: int, second: bool) -> Statistic:
    """Return what is to be recorded of the training batches for FedCMD's vote.

    Args:
        layers: the candidates' names.
        classes: C.
        second: of equally many votes the second layer wins, not the lower one.
    """
    look = Shift(layers, classes, "tensors")
    return Statistic("shift", BatchVotes(look, second), finish=Majority(second))


@dataclass(frozen=True)
class BatchVotes:
    """FedCMD: one vote for each batch, the layer of least score with distances of means.

    Such scores are often equal: s_l = 0 wherever o_{l-1} and o_l lie on the same side of x and y.
    """

    look: Shift
    second: bool

    def __call__(self, context: StepContext) -> Tree:
        """Return `votes` [L]: one for the layer, none for a batch of padding."""
        x, y, outputs = self.look.gaussians(self.look(context))
        scores = shift_scores(x, y, outputs, of_means, by_side=True)
        number = torch.arange(len(scores), device=scores.device)
        vote = (number == least(scores, second=self.second)) & context.batch.mask.any()
        return {"votes": vote.to(torch.int32)}


@dataclass(frozen=True)
class Majority:
    """FedCMD: the vote of a client is that of most of its batches."""

    second: bool

    def __call__(self, found: Tree, leaves: Tree, ctx: Tree) -> Tree:
        """Return `vote` []."""
        return {"vote": majority(found["votes"], second=self.second)}


def least(scores: Tensor, *, second: bool = False) -> Tensor:
    """Return the layer [] of least score [L]; of equals as `majority` does."""
    return majority((scores <= scores.min() + SAME).int(), second=second)


def majority(votes: Tensor, *, second: bool) -> Tensor:
    """Return the layer [] with most votes [L]; of equals the lower, or the `second` if it is one.

    Args:
        votes: [L] counts.
        second: layer 1 comes before layer 0 where they are equal.
    """
    place = torch.arange(len(votes), device=votes.device)
    rank = torch.where(place == 1, -1, place) if second else place
    return (votes * (len(votes) + 2) - rank).argmax()
