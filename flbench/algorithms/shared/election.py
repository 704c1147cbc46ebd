"""Elections of a personal layer: the base of FedCMD and FedCPMD.

In a first phase, clients vote for a layer of the net; in a second phase, the elected layer is
personal.
"""

from math import floor
from typing import ClassVar

from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.core.types import Context, Stage, State
from flbench.models.base import LayerSpec

EQUAL_SCORES = 1e-9  # scores this close are equal, so that no rounding error decides a vote


class LayerElection(Algorithm):
    """Base of methods with a phase of votes and a second phase with an elected personal layer.

    A subclass sets `second` and defines `voting_rounds`.
    """

    second: ClassVar[str]
    """Name of the stage of the second phase."""

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The L candidate layers, in the order of the forward pass.

        They are the linear layers behind the last convolution; the last of them is the classifier.
        """
        layers = self.setting.net.layers
        convolutions = [k for k, layer in enumerate(layers) if layer.kind == "conv"]
        behind = layers[max(convolutions, default=-1) + 1 :]
        return tuple(layer for layer in behind if layer.kind == "linear")

    @property
    def voting_rounds(self) -> int:
        """Number of rounds of the first phase, from 0 to the number of rounds T."""
        raise NotImplementedError

    def requires(self) -> list[str]:
        layers = self.layers
        if len(layers) >= 2 and set(layers[-1].leaves) == self.setting.net.names("head"):
            return super().requires()
        return [
            f"{self.name} needs at least two layers to choose from, of which the last one is the"
            f" head of the net; `model.name` has {len(layers)} linear layers behind the last"
            " convolution. Choose a net with more of them, such as model.name=lenet5, cnn, vgg11"
            " or mlp."
        ]

    def stages(self) -> tuple[Stage, ...]:
        return self.two_stages("vote", self.voting_rounds, self.second)

    def voting(self, state: State) -> bool:
        """Return whether the state is in the phase of votes."""
        return self.stage(state).name == "vote"

    def by_layer(self, name: str, numbers: Tensor) -> dict[str, float]:
        """Return how often each layer's number [M] occurs, as metrics such as `votes_fc1`."""
        counts = numbers.bincount(minlength=len(self.layers)).tolist()
        names = [layer.name.removeprefix("backbone.") for layer in self.layers]
        return {f"{name}_{one}": float(k) for one, k in zip(names, counts, strict=True)}


def layer_outputs(context: Context, layers: tuple[str, ...]) -> list[Tensor]:
    """Return o_0 to o_L of a batch, [B, ...] each.

    o_0 is the input of the first candidate layer; o_1 to o_{L-1} are the inputs of the following
    ones, so that they include the ReLU between them; o_L is the output of the last one, the logits.
    The L layers are in the order of the forward pass.
    """
    found = context.apply(context.leaves, context.batch.x, activations=layers).activations
    return [*(found[name][0] for name in layers), found[layers[-1]][1]]


def smallest(scores: Tensor) -> Tensor:
    """Return [L] int32: 1 for the layers with the smallest score, up to 1e-9, and 0 for others."""
    return (scores <= scores.min() + EQUAL_SCORES).int()


def rounded(share: float, count: int) -> int:
    """Return a share of a number of clients or rounds, rounded, and at least 1.

    >>> rounded(0.1, 100), rounded(0.1, 25), rounded(0.1, 1)
    (10, 3, 1)
    """
    return max(1, floor(share * count + 0.5))
