"""Elections of a personal layer: the base of FedCMD and FedCPMD.

In a first phase, clients vote for a layer of the net; in a second phase, the elected layer is
personal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.config.schema import AlgorithmConfig
from flbench.core.types import Context, Stage, State, Tree
from flbench.models.base import LayerSpec, NetSpec

Candidates = Literal["linear", "all"]
EQUAL_SCORES = 1e-9  # scores this close are equal, so that no rounding error decides a vote


class BallotConfig(AlgorithmConfig):
    """Keys of methods in which clients vote for a layer."""

    candidates: Candidates = Field(
        "linear",
        description="layers that clients vote for: the linear layers behind the last convolution,"
        " or all convolutions and linear layers",
    )


class LayerElection(Algorithm):
    """Base of methods with a phase of votes and a second phase with an elected personal layer.

    A subclass sets `second` and defines `voting_rounds`.
    """

    config: BallotConfig
    second: ClassVar[str]
    """Name of the stage of the second phase."""

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The L candidate layers in the order of the forward pass; the classifier is the last."""
        return candidates(self.setting.net, self.config.candidates)

    @property
    def voting_rounds(self) -> int:
        """Number of rounds of the first phase, from 0 to the number of rounds T."""
        raise NotImplementedError

    def requires(self) -> list[str]:
        return unmet(self.layers, self.setting.net)

    def stages(self) -> tuple[Stage, ...]:
        first = self.voting_rounds
        lengths = {"vote": first, self.second: self.setting.rounds - first}
        return tuple(Stage(name, rounds) for name, rounds in lengths.items() if rounds)

    def voting(self, state: State) -> bool:
        """Return whether the state is in the phase of votes."""
        return self.stages()[state.stage].name == "vote"

    def by_layer(self, name: str, numbers: Tensor) -> dict[str, float]:
        """Return how often each layer occurs, as metrics `NAME_LAYER`; see `short_names`.

        Args:
            name: Prefix of the metrics, such as `votes`.
            numbers: [M] int64 numbers of candidate layers, in [0, L).
        """
        counts = numbers.bincount(minlength=len(self.layers)).tolist()
        layers = zip(short_names(self.layers), counts, strict=True)
        return {f"{name}_{layer}": float(count) for layer, count in layers}


def candidates(net: NetSpec, which: Candidates = "linear") -> tuple[LayerSpec, ...]:
    """Return the layers that clients can vote for, in the order of the forward pass.

    A vote compares a layer's input with its output, so that the forward pass must call the layer.

    Args:
        net: Description of the net.
        which: `linear` for the linear layers behind the last convolution, with the classifier last;
            `all` for all convolutions and linear layers.
    """
    if which == "all":
        kinds = ("conv", "linear")
        return tuple(layer for layer in net.layers if layer.kind in kinds and layer.is_called)
    convolutions = [k for k, layer in enumerate(net.layers) if layer.kind == "conv"]
    first = max(convolutions, default=-1) + 1
    late = net.layers[first:]
    return tuple(layer for layer in late if layer.kind == "linear" and layer.is_called)


def unmet(layers: tuple[LayerSpec, ...], net: NetSpec) -> list[str]:
    """Return a sentence if clients have no choice; empty if they have.

    Args:
        layers: Candidate layers.
        net: Description of the net that they belong to.
    """
    cure = (
        "Choose a net with more of them, such as model.name=lenet5, cnn, vgg11 or mlp, or set"
        " algorithm.candidates=all."
    )
    if len(layers) < 2:
        return [
            "Clients vote for one of several layers, but the net (`model.name`) has only"
            f" {len(layers)} to choose from: by default, the linear layers behind the last"
            f" convolution whose module the net calls. {cure}"
        ]
    if set(layers[-1].leaves) != net.names("head"):
        return [
            "The last layer that clients can vote for must be the classifier, but the head of the"
            f" net (`model.name`) is not one linear layer. {cure}"
        ]
    return []


@dataclass(frozen=True)
class WriteVote:
    """A Transform that writes a client's vote and scores into leaves that are sent.

    Attributes:
        scores: Write the scores as well as the vote.
    """

    scores: bool = True

    def __call__(self, context: Context) -> Tree:
        """Return `vote` [] int32 and, if asked for, `scores` [L] in the dtype of the weights.

        Args:
            context: Its ctx has `shift.vote` [] and `shift.scores` [L] from the Statistic `shift`.
        """
        written = {"vote": context.ctx["shift.vote"].to(torch.int32)}
        if self.scores:
            written["scores"] = context.ctx["shift.scores"].to(context.info.lr.dtype)
        return written


def smallest(scores: Tensor) -> Tensor:
    """Return [L] int32: 1 for the layers with the smallest score, up to 1e-9, and 0 for others."""
    return (scores <= scores.min() + EQUAL_SCORES).int()


def short(layer: LayerSpec) -> str:
    """Return the last part of a layer's name: `fc1` for `backbone.fc1`."""
    return layer.name.rpartition(".")[2]


def short_names(layers: Sequence[LayerSpec]) -> list[str]:
    """Return the shortest ends of the layers' dotted names that differ from each other.

    In `lenet5` these are `conv1` and `fc1`. The blocks of `resnet18` all have a layer `conv1`, so
    that its layers are called `stage1_block1.conv1`, `stage1_block2.conv1`, ...
    """
    parts = [layer.name.split(".") for layer in layers]
    names = []
    for own in parts:
        ends = (own[-length:] for length in range(1, len(own) + 1))
        unique = (end for end in ends if sum(name[-len(end) :] == end for name in parts) == 1)
        names.append(".".join(next(unique, own)))
    return names


def rounded(share: float, count: int) -> int:
    """Return a share of a number of clients or rounds, rounded, and at least 1.

    >>> rounded(0.1, 100), rounded(0.1, 25), rounded(0.1, 1)
    (10, 3, 1)
    """
    return max(1, floor(share * count + 0.5))
