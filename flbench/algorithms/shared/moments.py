"""Statistics of the inputs of BatchNorm layers, and distances between those of clients."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.algorithms.base import Setting
from flbench.client.batchnorm import channel_sums, recalibrate
from flbench.client.program import Statistic, Step, Transform
from flbench.core.types import Info, StepContext, Tree

Called = Callable[[Tree, Tree], Tree] | None


def estimated(setting: Setting, weights: Called = None) -> tuple[Step, ...]:
    """Return steps that estimate BatchNorm statistics anew with `train.batchnorm=drop`, else none.

    With that policy clients begin each round with the statistics of the seeded net, and a round of
    training leaves much of them. These steps belong before any step that runs the net in eval mode.

    Args:
        setting: What the method knows of the experiment.
        weights: (leaves, ctx) -> what the net is called with; None calls it with the leaves.
    """
    return recalibrate(setting.net, weights) if setting.train.batchnorm == "drop" else ()


def collect_moments(setting: Setting, layers: tuple[str, ...]) -> tuple[Step, ...]:
    """Return steps that write the leaves `mean.LAYER` and `variance.LAYER`, [channels] each.

    They are those of the layer's inputs over the client's training samples, in eval mode.

    Args:
        setting: What the method knows of the experiment.
        layers: Names of BatchNorm layers.
    """
    return (
        *estimated(setting),
        Statistic("inputs", Moments(layers)),
        Transform(WriteMoments(layers)),
    )


def moment_leaves(layers: Iterable[str]) -> frozenset[str]:
    """Return the names of the leaves that `collect_moments` writes."""
    return frozenset(f"{kind}.{layer}" for layer in layers for kind in ("mean", "variance"))


def distances(sent: Tree, layers: Iterable[str]) -> Tensor:
    """Return the distances D [K, K] float64 between the input statistics of K clients.

    D_ij = sum_l sqrt(||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2), with means mu and standard
    deviations sigma of layer l.

    Args:
        sent: `mean.LAYER` and `variance.LAYER`, [K, channels] each.
        layers: Names of the layers, at least one.
    """
    parts = []
    for layer in layers:
        both = torch.cat([sent[f"mean.{layer}"], sent[f"variance.{layer}"].sqrt()], dim=1).double()
        # Computed through products, the distance of equal clients would not be exactly zero.
        parts.append(torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist"))
    return torch.stack(parts).sum(dim=0)


def near_ones(distance: Tensor, own: float) -> Tensor:
    """Return mixing weights W [K, K], where rows sum to 1 and near clients have larger weights.

    W_ii = own, and the other entries of a row are proportional to 1 / distance. A single client has
    weight 1.

    Args:
        distance: [K, K].
        own: Weight of a client's own model, in [0, 1].
    """
    if len(distance) == 1:
        return torch.ones_like(distance)
    near = (1.0 / distance.clamp_min(1e-12)).fill_diagonal_(0.0)
    return ((1 - own) * near / near.sum(dim=1, keepdim=True)).fill_diagonal_(own)


@dataclass(frozen=True)
class Moments:
    """Sums of the inputs of BatchNorm layers over the samples and positions of a batch.

    Attributes:
        layers: Names of the layers.
    """

    layers: tuple[str, ...]

    def __call__(self, context: StepContext) -> Tree:
        """Return `sum.LAYER` and `squares.LAYER` [channels] float64, and `count.LAYER` []."""
        activations = context.apply(
            context.leaves, context.batch.x, activations=self.layers
        ).activations
        sums: Tree = {}
        for layer in self.layers:
            of_layer = channel_sums(activations[layer][0], context.batch.mask)
            sums |= {f"{key}.{layer}": value for key, value in of_layer.items()}
        return sums


@dataclass(frozen=True)
class WriteMoments:
    """Writes mean and variance of each layer's inputs into `mean.LAYER` and `variance.LAYER`.

    Attributes:
        layers: Names of the layers.
    """

    layers: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the leaves of all layers, [channels] each."""
        written: Tree = {}
        for layer in self.layers:
            count = ctx[f"inputs.count.{layer}"].clamp_min(1)
            mean = ctx[f"inputs.sum.{layer}"] / count
            variance = (ctx[f"inputs.squares.{layer}"] / count - mean.square()).clamp_min(0.0)
            dtype = leaves[f"{layer}.weight"].dtype
            written[f"mean.{layer}"] = mean.to(dtype)
            written[f"variance.{layer}"] = variance.to(dtype)
        return written
