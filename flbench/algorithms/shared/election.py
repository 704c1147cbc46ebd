"""Clients elect a layer of the net: who stands for election, who is asked, who wins."""

from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.algorithms.shared.votes import BallotConfig, Candidates
from flbench.core.rng import Draw
from flbench.core.types import Results, Stage, State, Tree
from flbench.models.base import LayerSpec, NetSpec


class LayerElection(Algorithm):
    """Base of methods with a phase of votes, and a second one in which the elected is personal."""

    config: BallotConfig
    second: ClassVar[str]  # the second phase's name

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The candidate layers, L of them; the classifier is the last."""
        return candidates(self.setting.net, self.config.candidates)

    @property
    def voting_rounds(self) -> int:
        """Rounds of the first phase, at most T."""
        raise NotImplementedError

    def requires(self) -> list[str]:
        return unmet(self.layers, self.setting.net)

    def stages(self) -> tuple[Stage, ...]:
        first = self.voting_rounds
        lengths = {"vote": first, self.second: self.setting.rounds - first}
        return tuple(Stage(name, rounds) for name, rounds in lengths.items() if rounds)

    def voting(self, state: State) -> bool:
        """Return whether this is the phase of votes."""
        return self.stages()[state.stage].name == "vote"

    def by_layer(self, name: str, numbers: Tensor) -> dict[str, float]:
        """Return how often each layer's number occurs, as figures `NAME_LAYER`."""
        counts = numbers.bincount(minlength=len(self.layers)).tolist()
        return {f"{name}_{short(layer)}": float(counts[k]) for k, layer in enumerate(self.layers)}


def candidates(net: NetSpec, which: Candidates = "linear") -> tuple[LayerSpec, ...]:
    """Return the layers that can be voted for, in the order of the forward pass.

    Args:
        net: the net.
        which: `linear`: linear layers behind the last convolution, the classifier last; `all`:
            convolutions and linear layers.
    """
    convolutions = [k for k, layer in enumerate(net.layers) if layer.kind == "conv"]
    if which == "all":
        return tuple(layer for layer in net.layers if layer.kind in ("conv", "linear"))
    first = max(convolutions, default=-1) + 1
    return tuple(layer for layer in net.layers[first:] if layer.kind == "linear")


def unmet(layers: tuple[LayerSpec, ...], net: NetSpec) -> list[str]:
    """Return a sentence if there is nothing to vote on.

    Args:
        layers: the candidates.
        net: they are of.
    """
    nets = (
        "Take a net with more, such as lenet5, cnn, vgg11 or mlp, or set algorithm.candidates=all."
    )
    if len(layers) < 2:
        return [
            "clients vote for one of several layers, but the net (`model.name`) has"
            f" {len(layers)} to choose from (linear layers behind the last convolution). {nets}"
        ]
    if set(layers[-1].leaves) != net.names("head"):
        return [
            "the last layer that can be voted for must be the classifier, but the head of the net"
            f" (`model.name`) is not one linear layer. {nets}"
        ]
    return []


def elected(server: Tree) -> Tensor:
    """Return the most voted layer [N]; the last one, the classifier, without a vote.

    Ties go to the smaller sum of scores, then to the lower layer.

    Args:
        server: has `votes` [N, L], counts, and `score_sums` [N, L]; the smaller the better.
    """
    votes, scores = server["votes"], server["score_sums"]
    most = votes == votes.amax(dim=1, keepdim=True)
    best = torch.where(most, scores, torch.inf).argmin(dim=1)
    return torch.where(votes.any(dim=1), best, votes.shape[1] - 1)


def no_votes(clients: int, layers: int) -> Tree:
    """Return what the server knows before the first vote: counts and sums of scores, [N, L]."""
    return {
        "votes": torch.zeros(clients, layers, dtype=torch.int32),
        "score_sums": torch.zeros(clients, layers, dtype=torch.float64),
    }


def counted(server: Tree, results: Results) -> Tree:
    """Return the server's counts and sums with the `vote` and `scores` of a cohort."""
    votes, sums, sent = server["votes"].clone(), server["score_sums"].clone(), results.sent.values
    votes[results.ids, sent["vote"].long()] += 1
    sums[results.ids] += sent["scores"].double()
    return {"votes": votes, "score_sums": sums}


def covering(common: Tensor, waiting: Tensor, left: int, draw: Draw) -> Tensor:
    """Return the cohort [K] of a round of votes, ascending.

    In the last rounds, when there are just enough for all who wait, those come first.

    Args:
        common: [K] the cohort of all methods.
        waiting: [N] bool: clients without a vote.
        left: rounds of votes that are left, this one included.
        draw: of the round.
    """
    needed = ceil(int(waiting.sum()) / len(common))
    if not needed or left > needed:
        return common
    order = torch.from_numpy(draw.method_generator(0).permutation(len(waiting)))
    order = order[(~waiting[order]).int().argsort(stable=True)]
    return order[: len(common)].sort().values


def short(layer: LayerSpec) -> str:
    """Return the last part of a layer's name."""
    return layer.name.rpartition(".")[2]
