"""Clients that keep different layers: who sends what, who is drawn, means over those who share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Literal

import torch
from torch import Tensor

from flbench.algorithms.base import Deployment, Setting
from flbench.algorithms.shared.mixing import likeness, mix
from flbench.core.rng import Draw
from flbench.core.tree import nbytes, only, take, weighted_mean
from flbench.core.types import Info, Message, Results, State, Tree
from flbench.models.base import LayerSpec

Layers = tuple[LayerSpec, ...]
Mixing = Literal["similarity", "raw", "mean"]
Phase1 = Literal["classifier", "majority", "none"]
Ablation = Literal["none", "only_cluster", "only_decouple"]
GUARD = 1e-8  # FedCPMD, eq. 13: added to the product of the norms


def owners(layers: Layers) -> dict[str, int]:
    """Return the number of the layer that each of their leaves belongs to."""
    return {leaf: index for index, layer in enumerate(layers) for leaf in layer.leaves}


def each_but_own(rows: Tree, own: Tensor, layers: Layers) -> Tree:
    """Return for every leaf a mask [K]: True for clients that do not keep its layer.

    Args:
        rows: of some leaves.
        own: [K, L] bool: the layers that each client keeps.
        layers: L of them; other leaves are kept by nobody.
    """
    owner, nobody = owners(layers), torch.zeros(len(own), dtype=torch.bool)
    return {name: ~(own[:, owner[name]] if name in owner else nobody) for name in rows}


@dataclass(frozen=True)
class UploadOthers:
    """Copies of layers for the upload, and which of them a client shares.

    The layers' own leaves stay as they are: what lies outside the mask of a message is zeroed.
    """

    layers: Layers

    @property
    def masks(self) -> tuple[tuple[str, str], ...]:
        """The pairs of a copy and the leaf that says whether it crosses."""
        return tuple(
            (f"up.{leaf}", f"share.{one.name}") for one in self.layers for leaf in one.leaves
        )

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return `up.LEAF` and `share.LAYER` [] bool; ctx `personal` [L] names the own layer."""
        up = {f"up.{leaf}": leaves[leaf] for layer in self.layers for leaf in layer.leaves}
        own = ctx["personal"]
        return up | {f"share.{layer.name}": ~own[k] for k, layer in enumerate(self.layers)}


def alike(rows: Tree, chosen: Tensor, layers: Layers, *, clamp: bool) -> Tensor:
    """Return Phi [M, M] float64 of FedCPMD's eq. 13: cosines of the layer that clients have chosen.

    0 between clients that have chosen different ones, 1 on the diagonal.

    Args:
        rows: [M, ...] each.
        chosen: [M] a layer's number.
        layers: the layers.
        clamp: negative cosines are 0.
    """
    phi = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
    for index, layer in enumerate(layers):
        some = (chosen == index).nonzero().flatten()
        if len(some):
            cosines = likeness(take(rows, some), layer.parameters, added=GUARD)
            phi[some[:, None], some] = cosines
    return (phi.clamp_min(0.0) if clamp else phi).fill_diagonal_(1.0)


def within(rows: Tree, weights: Tensor, clusters: Tensor, layers: Layers, how: Mixing) -> Tensor:
    """Return the weights [M, M] of clients for one another in their cluster, not normalised.

    By how alike their layers are, or by their own `weights`. Who took no step (weight 0) counts for
    nobody else (C5).

    Args:
        rows: [M, ...] each.
        weights: [M] >= 0.
        clusters: [M] the layer that clients have chosen.
        layers: the layers.
        how: cosines, clamped at 0 or as they are; or the weights.
    """
    if how == "mean":
        return (clusters[:, None] == clusters) * weights
    phi = alike(rows, clusters, layers, clamp=how == "similarity")
    return (phi * (weights > 0)).fill_diagonal_(1.0)


def with_absent(state: State, results: Results, met: Tensor) -> Results:
    """Return the last uploads of all clients that were met [N] bool; the absent took a step."""
    ids = met.nonzero().flatten()
    steps = torch.ones_like(met, dtype=torch.int64).index_copy(0, results.ids, results.steps)
    sent = Message(take(state.clients, ids))
    return replace(results, ids=ids, steps=steps[ids], sent=sent)


def places(ids: Tensor, among: Tensor) -> Tensor:
    """Return where each of the ids [K] stands among others [M], which have them all."""
    return (ids[:, None] == among).int().argmax(dim=1)


def mean_of_sharers(sent: Message, weights: Tensor, names: Iterable[str]) -> Tree:
    """Return the weighted mean of each leaf over the clients that sent it; not of what nobody did.

    Args:
        sent: [K, ...] each; copies for the upload are called `up.LEAF`.
        weights: [K] >= 0.
        names: of the leaves.
    """
    mean: Tree = {}
    for name, rows in sent.values.items():
        if (leaf := name.removeprefix("up.")) in names:
            mean |= weighted_mean({leaf: rows}, weights * sent.mask.get(name, 1))
    return mean


def mix_shared(
    rows: Tree, weights: Tensor, own: Tensor, layers: Layers, receivers: Tensor
) -> Message:
    """Return the shared leaves of some clients, mixed over those who share them too.

    sum_j weights[i, j] rows[j] / sum_j weights[i, j]; the client's own where the sum is not
    positive. Clients get no leaf of a layer that they keep.

    Args:
        rows: [M, ...] each.
        weights: [M, M].
        own: [M, L] bool: the layers that each client keeps.
        layers: L of them; other leaves are shared by all.
        receivers: [K] places in [0, M).
    Returns: [K, ...] each, and masks [K].
    """
    owner, mixed = owners(layers), {}
    alone = torch.eye(len(weights), dtype=weights.dtype)
    for index, names in _by_layer(rows, owner).items():
        share = torch.ones(len(own), dtype=torch.bool) if index is None else ~own[:, index]
        some = weights * share
        total = some.sum(dim=1, keepdim=True)
        some = torch.where(total > GUARD, some / total.clamp_min(GUARD), alone)
        mixed.update(mix(only(rows, names), some[receivers]))
    return Message(mixed, each_but_own(mixed, own[receivers], layers))


def of_each(clusters: Tensor, share: float, least: int, draw: Draw) -> Tensor:
    """Return a cohort [K] with a share of each cluster, ascending.

    Args:
        clusters: [N] of each client.
        share: of a cluster's members, rounded, and one at least.
        least: so many of each cluster, if it has them.
        draw: of the round.
    """
    drawn = []
    for cluster in range(int(clusters.max()) + 1):
        members = (clusters == cluster).nonzero().flatten()
        size = max(least, rounded(share, len(members)))
        order = torch.from_numpy(draw.method_generator(1, cluster).permutation(len(members)))
        drawn.append(members[order[:size]])
    return torch.cat(drawn).sort().values


def rounded(share: float, clients: int) -> int:
    """Return max(1, floor(share clients + 0.5))."""
    return max(1, floor(share * clients + 0.5))


def few_per_cluster(setting: Setting, rounds: int, layers: int, least: int) -> list[str]:
    """Return what a cohort that is a share of small clusters means, in a sentence each.

    Args:
        setting: clients, participation, T.
        rounds: of the votes.
        layers: L.
        least: so many of each cluster.
    """
    share, clients, said = setting.train.participation, setting.clients, []
    if rounds == setting.rounds:
        said.append("all rounds are votes (`algorithm.k_p`): nothing is clustered.")
    if rounds * rounded(share, clients) < clients:
        said.append(
            f"{rounds} rounds of votes with {rounded(share, clients)} clients cannot ask all"
            f" {clients}; those without a vote keep their classifier."
        )
    fewest = ceil(1.5 / share)
    if share < 1 and least == 1 and fewest * layers > clients:
        said.append(
            f"a cluster of fewer than {fewest} clients trains one of them a round, which mixes"
            " with nobody (`train.participation`, `algorithm.min_per_cluster`)."
        )
    return said


def judged_by_cluster(
    model: Deployment, cohort: Tensor, clusters: Tensor, names: Sequence[str]
) -> dict[str, Deployment]:
    """Return a model as one of each cluster's part of a cohort, by name.

    Args:
        model: of all clients.
        cohort: [K] ids.
        clusters: [N] of each client, in [0, G).
        names: G of them.
    """
    groups = clusters[cohort]
    return {
        name: replace(model, clients=cohort[groups == k])
        for k, name in enumerate(names)
        if bool((groups == k).any())
    }


def layer_bytes(rows: Tree, own: Tensor, layers: Layers) -> float:
    """Return the bytes of the layers that clients keep.

    Args:
        rows: of all leaves.
        own: [K, L] bool.
        layers: L of them.
    """
    sizes = [nbytes({leaf: rows[leaf][0] for leaf in layer.leaves}) for layer in layers]
    return float((own.double() @ torch.tensor(sizes, dtype=torch.float64)).sum())


def _by_layer(names: Iterable[str], owner: dict[str, int]) -> dict[int | None, list[str]]:
    """Return the leaves of each layer by its number, and all others under None."""
    groups: dict[int | None, list[str]] = {}
    for name in names:
        groups.setdefault(owner.get(name), []).append(name)
    return groups
