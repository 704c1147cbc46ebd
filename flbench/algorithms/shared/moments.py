"""Mean and variance of what flows into BatchNorm layers, and how far clients' are apart."""

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
    """Return the steps that estimate statistics anew under `train.batchnorm=drop`, else none.

    For what looks at a net in eval mode: in the statistics that a round's training left behind
    there is still much of the seeded ones.

    Args:
        setting: of the run.
        weights: (leaves, ctx) -> what the net is called with; None calls it with the leaves.
    """
    return recalibrate(setting.net, weights) if setting.train.batchnorm == "drop" else ()


def collect_moments(setting: Setting, layers: tuple[str, ...]) -> tuple[Step, ...]:
    """Return the steps that write `mean.LAYER` and `variance.LAYER` [channels], in eval mode."""
    return (
        *estimated(setting),
        Statistic("inputs", Moments(layers)),
        Transform(WriteMoments(layers)),
    )


def moment_leaves(layers: Iterable[str]) -> frozenset[str]:
    """Return the leaves that they write."""
    return frozenset(f"{kind}.{layer}" for layer in layers for kind in ("mean", "variance"))


def distances(sent: Tree, layers: Iterable[str]) -> Tensor:
    """Return D [K, K] float64: sum over layers of the distance of means and standard deviations.

    D_ij = sum_l sqrt(||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2).

    Args:
        sent: `mean.LAYER` and `variance.LAYER` [K, channels].
        layers: at least one.
    """
    parts = []
    for layer in layers:
        both = torch.cat([sent[f"mean.{layer}"], sent[f"variance.{layer}"].sqrt()], dim=1).double()
        # Not through products, where the distance of equal clients is not zero.
        parts.append(torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist"))
    return torch.stack(parts).sum(dim=0)


def near_ones(distance: Tensor, own: float) -> Tensor:
    """Return W [K, K] for distances [K, K]: W_ii = own, the rest in proportion to 1 / distance.

    Rows sum to 1; a single client has weight 1.
    """
    if len(distance) == 1:
        return torch.ones_like(distance)
    near = (1.0 / distance.clamp_min(1e-12)).fill_diagonal_(0.0)
    return ((1 - own) * near / near.sum(dim=1, keepdim=True)).fill_diagonal_(own)


@dataclass(frozen=True)
class Moments:
    """Sums over samples and positions of the inputs of BatchNorm layers, `SUM.LAYER` [channels]."""

    layers: tuple[str, ...]

    def __call__(self, context: StepContext) -> Tree:
        """Return the sums of one batch."""
        activations = context.apply(
            context.leaves, context.batch.x, activations=self.layers
        ).activations
        found: Tree = {}
        for layer in self.layers:
            sums = channel_sums(activations[layer][0], context.batch.mask)
            found |= {f"{key}.{layer}": value for key, value in sums.items()}
        return found


@dataclass(frozen=True)
class WriteMoments:
    """Write mean and variance of each layer's inputs into `mean.LAYER` and `variance.LAYER`."""

    layers: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return both for all layers, [channels] each."""
        written: Tree = {}
        for layer in self.layers:
            count = ctx[f"inputs.count.{layer}"].clamp_min(1)
            mean = ctx[f"inputs.sum.{layer}"] / count
            variance = (ctx[f"inputs.squares.{layer}"] / count - mean.square()).clamp_min(0.0)
            dtype = leaves[f"{layer}.weight"].dtype
            written[f"mean.{layer}"] = mean.to(dtype)
            written[f"variance.{layer}"] = variance.to(dtype)
        return written
