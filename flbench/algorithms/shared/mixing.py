"""Clients' weights mixed with one row of weights per receiver, and how alike they are."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from flbench.core.tree import broadcast
from flbench.core.types import Tree
from flbench.losses.similarity import EPSILON

ENTRIES = 2**25  # 256 MB of float64; a whole leaf of 100 ResNets would take 1.9 GB


def mix(rows: Tree, weights: Tensor) -> Tree:
    """Return sum_j weights[i, j] rows[j] for every receiver i, leaf by leaf.

    Sums accumulate in float64 with one cast at the end. An integer leaf (BatchNorm's counter) takes
    the maximum over the clients of non-zero weight.

    Args:
        rows: [K, ...] each, finite.
        weights: [R, K]; whether rows sum to one is the caller's affair.
    Returns: [R, ...] each.
    """
    weights = weights.double()
    mixed: Tree = {}
    for name, value in rows.items():
        shape = (len(weights), *value.shape[1:])
        if not value.is_floating_point():
            flat = value.reshape(len(value), -1)
            least = torch.iinfo(value.dtype).min
            candidates = torch.where(weights[:, :, None] != 0, flat, least)
            mixed[name] = candidates.amax(dim=1).reshape(shape)
            continue
        target = torch.empty(len(weights), value[0].numel(), dtype=value.dtype)
        for low, part in _columns(value):
            target[:, low : low + part.shape[1]] = weights @ part
        mixed[name] = target.reshape(shape)
    return mixed


def mix_overlap(rows: Tree, masks: Tree, weights: Tensor) -> Tree:
    """Return what each client has of its own entries, averaged over those that have them too.

    sum_j weights[i, j] rows[j] / sum_j weights[i, j] masks[j] where masks[i] is True, else 0. Sums
    accumulate in float64 with one cast at the end.

    Args:
        rows: [K, ...] each, zero outside the masks.
        masks: [K, ...] bool, by the same names.
        weights: [K, K], with a positive diagonal.
    Returns: [K, ...] each.
    """
    weights = weights.double()
    mixed: Tree = {}
    for name, value in rows.items():
        target = torch.empty(len(value), value[0].numel(), dtype=value.dtype)
        for (low, part), (_, inside) in zip(_columns(value), _columns(masks[name]), strict=True):
            mean = (weights @ part) / (weights @ inside)
            target[:, low : low + part.shape[1]] = torch.where(inside > 0, mean, 0.0)
        mixed[name] = target.reshape(value.shape)
    return mixed


def mix_latest(rows: Tree, weights: Tensor, *, known: Tensor, common: Tree) -> Tree:
    """Return `mix` of the clients' latest uploads.

    A client that has uploaded nothing yet counts with the model that all were given.

    One receiver at a time: its bits do not depend on who else is asked for, and clients of weight 0
    cost nothing.

    Args:
        rows: [N, ...] each: the latest uploads, and anything where there is none.
        weights: [R, N].
        known: [N] bool: who has uploaded.
        common: the model that all were given; no client axis.
    Returns: [R, ...] each.
    """
    mixed: Tree = {}
    for name, value in rows.items():
        received = []
        for row in weights:
            used = (row != 0) | ~row.any()  # a row of zeros gives zeros
            some = value[used]
            some = torch.where(broadcast(known[used], some), some, common[name])
            received.append(mix({name: some}, row[None, used])[name])
        mixed[name] = torch.cat(received)
    return mixed


def likeness(rows: Tree, names: Iterable[str], *, added: float = 0.0) -> Tensor:
    """Return cos(v_i, v_j) [K, K] in float64; v_i is all of client i's named leaves, one vector.

    A zero vector has cosine 0 with everything, itself included (C12).

    Args:
        rows: [K, ...] each.
        names: the leaves, of floating point.
        added: to the product of the norms, where a paper has it.
    """
    gram = torch.zeros((), dtype=torch.float64)
    for name in names:
        for _, part in _columns(rows[name]):
            gram = gram + part @ part.T
    norm = gram.diagonal().sqrt()
    return gram / (norm[:, None] * norm + added).clamp_min(EPSILON)


def _columns(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield (first column, [K, columns] float64) over a leaf's rows, at most ENTRIES at once."""
    flat = value.reshape(len(value), -1)
    columns = max(1, ENTRIES // max(1, len(value)))
    for low in range(0, flat.shape[1], columns):
        yield low, flat[:, low : low + columns].double()
