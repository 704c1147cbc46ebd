"""Mixtures of clients' models, one row of weights per receiver, and cosines between models."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from flbench.core.tree import broadcast
from flbench.core.types import Tree
from flbench.losses.similarity import EPSILON

ENTRIES = 2**25  # entries that are cast to float64 at once (256 MB)


def mix(rows: Tree, weights: Tensor) -> Tree:
    """Return sum_j weights[i, j] rows[j] for every receiver i, leaf by leaf.

    Sums accumulate in float64 with one cast at the end. A leaf of integers or booleans (BatchNorm's
    counter) takes the maximum over the clients whose weight is not zero.

    Args:
        rows: Models of K clients, [K, ...] per leaf, finite.
        weights: [R, K] for R receivers; rows need not sum to one.

    Returns:
        The mixtures, [R, ...] per leaf.
    """
    weights = weights.double()
    mixed: Tree = {}
    for name, value in rows.items():
        shape = (len(weights), *value.shape[1:])
        if not value.is_floating_point():
            flat = value.reshape(len(value), value.shape[1:].numel())
            least = 0 if value.dtype == torch.bool else torch.iinfo(value.dtype).min
            candidates = torch.where(weights[:, :, None] != 0, flat, least)
            mixed[name] = candidates.amax(dim=1).reshape(shape)
            continue
        target = torch.empty(len(weights), value.shape[1:].numel(), dtype=value.dtype)
        for low, part in _columns(value):
            target[:, low : low + part.shape[1]] = weights @ part
        mixed[name] = target.reshape(shape)
    return mixed


def mix_overlap(rows: Tree, masks: Tree, weights: Tensor) -> Tree:
    """Return masked leaves, each entry averaged over the clients whose masks have it.

    sum_j weights[i, j] rows[j] / sum_j weights[i, j] masks[j] for every receiver i, and 0 where the
    denominator is 0. Sums accumulate in float64 with one cast at the end.

    Args:
        rows: Models of K clients, [K, ...] per leaf, zero outside the masks.
        masks: [K, ...] bool, under the same names.
        weights: [R, K] for R receivers, not negative; rows need not sum to one.

    Returns:
        The means, [R, ...] per leaf. An entry may be different from zero if any client with a
        positive weight has it in its mask.
    """
    weights = weights.double()
    mixed: Tree = {}
    for name, value in rows.items():
        target = torch.empty(len(weights), value.shape[1:].numel(), dtype=value.dtype)
        for (low, part), (_, inside) in zip(_columns(value), _columns(masks[name]), strict=True):
            total = weights @ inside  # [R, columns]
            mean = (weights @ part) / total
            target[:, low : low + part.shape[1]] = torch.where(total > 0, mean, 0.0)
        mixed[name] = target.reshape(len(weights), *value.shape[1:])
    return mixed


def latest(rows: Tree, ids: Tensor, *, known: Tensor, common: Tree) -> Tree:
    """Return the latest uploads of some clients, [R, ...] per leaf.

    Args:
        rows: Latest uploads of all clients, [N, ...] per leaf.
        ids: Ids [R] int64 of the clients.
        known: [N] bool, True for clients that have uploaded a model.
        common: Model of all other clients, without a client axis.
    """
    found: Tree = {}
    for name, value in rows.items():
        some = value[ids]
        found[name] = torch.where(broadcast(known[ids], some), some, common[name])
    return found


def mix_latest(rows: Tree, weights: Tensor, *, known: Tensor, common: Tree) -> Tree:
    """Return mixtures of the clients' latest uploads, as `mix` does.

    A client without an upload counts with the model `common`. Each receiver is computed on its own,
    so that its result is the same to the bit for any set of receivers.

    Args:
        rows: Latest uploads, [N, ...] per leaf; rows of clients without an upload are not read.
        weights: [R, N] for R receivers.
        known: [N] bool, True for clients that have uploaded a model.
        common: Model of all other clients, without a client axis.

    Returns:
        The mixtures, [R, ...] per leaf.
    """
    used = [(row, row.nonzero()[:, 0]) for row in weights]
    mixed: Tree = {}
    for name, value in rows.items():
        leaf, found = {name: value}, []
        for row, some in used:
            models = latest(leaf, some, known=known, common=common)
            found.append(mix(models, row[some][None])[name])
        mixed[name] = torch.cat(found)
    return mixed


def pairwise_cosines(rows: Tree, names: Iterable[str], *, added: float = 0.0) -> Tensor:
    """Return the cosines [K, K] float64 between the models of K clients.

    A client's named leaves count as one vector. A zero vector has cosine 0 with every vector,
    itself included.

    Args:
        rows: [K, ...] per leaf.
        names: Names of the leaves, which are of floating point.
        added: Constant that is added to the product of the norms, if a paper has one.
    """
    gram = _gram(rows, names)
    norm = gram.diagonal().sqrt()
    return gram / (norm[:, None] * norm + added).clamp_min(EPSILON)


def squared_distances(rows: Tree, names: Iterable[str]) -> Tensor:
    """Return the squared Euclidean distances [K, K] float64 between the models of K clients.

    A client's named leaves count as one vector. Distances below about 1e-8 of the length of the
    vectors are lost in rounding.

    Args:
        rows: [K, ...] per leaf.
        names: Names of the leaves, which are of floating point.

    >>> squared_distances({"w": torch.tensor([[0.0, 0.0], [3.0, 4.0]])}, ["w"])
    tensor([[ 0., 25.],
            [25.,  0.]], dtype=torch.float64)
    """
    gram = _gram(rows, names)
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0.0)


def _gram(rows: Tree, names: Iterable[str]) -> Tensor:
    """Return the inner products [K, K] float64 of the models of K clients."""
    gram = torch.zeros((), dtype=torch.float64)
    for name in names:
        for _, part in _columns(rows[name]):
            gram = gram + part @ part.T
    return gram


def _columns(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield a leaf's rows in blocks: (first column, [K, columns] float64), at most ENTRIES each."""
    flat = value.reshape(len(value), value.shape[1:].numel())
    columns = max(1, ENTRIES // max(1, len(value)))
    for low in range(0, flat.shape[1], columns):
        yield low, flat[:, low : low + columns].double()
