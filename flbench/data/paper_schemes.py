"""The schemes of papers beyond those of `flbench.data.schemes`, and natural clients."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.data.dataset import Dataset
from flbench.data.schemes import (
    Indices,
    Scheme,
    by_class,
    by_client,
    dirichlet,
    largest_remainder,
)


def pathological(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client `classes_per_client` classes; clients with a class share it equally.

    Every client in turn, in random order, gets the classes that the fewest clients have so far, so
    the numbers of clients per class differ by at most one.
    """
    members = by_class(y)
    holders = _holders(len(members), config, classes, clients, rng)
    assigned: list[list[Indices]] = [[np.zeros(0, dtype=np.int64)] for _ in range(clients)]
    for positions, owners in zip(members, holders, strict=True):
        samples = rng.permutation(positions)
        pieces = np.array_split(samples, max(1, len(owners)))
        for client, piece in zip(owners, pieces, strict=False):
            assigned[client].append(piece)
    return [np.concatenate(mine) for mine in assigned]


def _holders(
    n: int, config: PartitionConfig, classes: int, clients: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the clients of each of the n classes that occur; each has `classes_per_client`."""
    if config.classes_per_client > classes:
        raise ConfigError(
            f"`partition.classes_per_client` must be at most the {classes} classes of the data set,"
            f" got {config.classes_per_client}."
        )
    count = min(config.classes_per_client, n)
    holders: list[list[int]] = [[] for _ in range(n)]
    held = np.zeros(n, dtype=np.int64)  # number of clients of each class
    for client in rng.permutation(clients):
        order = rng.permutation(n)
        # Classes with the fewest clients come first, in random order among equals.
        keys = held[order] * n + np.arange(n)  # all different
        scarce = order[np.argpartition(keys, count - 1)[:count]]
        held[scarce] += 1
        for k in scarce:
            holders[k].append(int(client))
    return holders


def extended_dirichlet(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client `classes_per_client` classes, and shares of them drawn from Dirichlet.

    The classes are given as in `pathological`. The clients of a class divide it by shares drawn
    from Dirichlet(alpha).

    Source: Li and Lyu, NeurIPS 2023 (Convergence Analysis of Sequential Federated Learning on
    Heterogeneous Data), whose clients draw their classes at random.
    """
    members = by_class(y)
    holders = _holders(len(members), config, classes, clients, rng)
    drawn, owners = [], []
    for positions, held_by in zip(members, holders, strict=True):
        if held_by:
            counts = largest_remainder(dirichlet(config.alpha, len(held_by), rng), len(positions))
            drawn.append(rng.permutation(positions))
            owners.append(np.repeat(np.array(held_by), counts))
    return by_client(np.concatenate(drawn), np.concatenate(owners), clients)


def shards(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Sort the samples by class, cut them into N * `shards` pieces, and give each client `shards`.

    Source: McMahan et al., AISTATS 2017, with 100 clients and two pieces for each.

    Raises:
        ConfigError: There are more pieces than samples.
    """
    count = clients * config.shards
    if count > len(y):
        raise ConfigError(
            f"`partition.shards`={config.shards} for {clients} clients needs {count:,} samples, and"
            f" there are {len(y):,}. Lower it, or partition.clients."
        )
    pieces = np.array_split(_sorted_by_class(y, rng), count)
    order = rng.permutation(count).reshape(clients, config.shards)
    return [np.concatenate([pieces[k] for k in mine]) for mine in order]


def similarity(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client a share of samples at random, and a piece of the others sorted by class.

    Source: Karimireddy et al., ICML 2020 (SCAFFOLD), section 7.
    """
    order = rng.permutation(len(y))
    count = int(np.floor(config.similarity * len(y) + 1e-9))
    at_random, others = order[:count], np.sort(order[count:])
    by_label = others[_sorted_by_class(y[others], rng)]
    return [
        np.concatenate(both)
        for both in zip(
            np.array_split(at_random, clients), np.array_split(by_label, clients), strict=True
        )
    ]


def _sorted_by_class(y: Indices, rng: np.random.Generator) -> Indices:
    """Return all positions sorted by class, in random order within a class."""
    members = [rng.permutation(positions) for positions in by_class(y)]
    return np.concatenate(members) if members else np.zeros(0, dtype=np.int64)


def intervals(targets: NDArray[Any], bins: int) -> Indices:
    """Return the interval [n] in [0, bins) of each target, with equally many samples in each.

    Args:
        targets: Targets [n]. Equal targets are in one interval.
        bins: Number of intervals.

    >>> intervals(np.array([0.5, -1.0, 3.0, 2.0]), 2)
    array([0, 0, 1, 1])
    """
    edges = np.quantile(targets, np.arange(1, bins) / bins)
    return np.searchsorted(edges, targets, side="left").astype(np.int64)


def grouped(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client the share `main_share` of its samples from the main classes of its group.

    The groups have as equal sizes as possible. The samples from main classes are divided equally
    among these classes, and the other samples among the other classes.

    Source: SLAPFL, section 4, with 20 clients in groups of 7, 7 and 6 that have 2, 3 and 5 main
    classes.

    Raises:
        ConfigError: The main classes, or the number of samples of a client, do not fit the data.
    """
    main = config.main_classes
    if min(main, default=0) < 1 or sum(main) > classes or len(main) > clients:
        raise ConfigError(
            f"`partition.main_classes`={list(main)} must be numbers >= 1, one for each group of"
            f" clients (there are {clients} clients), that sum to at most {classes} classes."
        )
    ends = np.cumsum(main)
    sizes = [len(piece) for piece in np.array_split(np.arange(clients), len(main))]
    wants = np.empty((clients, classes))
    for client, g in enumerate(np.repeat(np.arange(len(main)), sizes)):
        is_main = np.zeros(classes, dtype=bool)
        is_main[ends[g] - main[g] : ends[g]] = True
        rest = 1.0 - config.main_share if (~is_main).any() else 0.0
        shares = ((1.0 - rest) / is_main.sum(), rest / max(1, (~is_main).sum()))
        wants[client] = np.where(is_main, *shares)
    stock = np.bincount(y, minlength=classes)
    demand = wants.sum(axis=0)
    feasible = int(np.floor((stock[demand > 0] / demand[demand > 0]).min() + 1e-9))
    size = feasible if config.samples_per_client is None else config.samples_per_client
    if not config.min_samples <= size <= feasible:
        raise ConfigError(
            f"`partition.samples_per_client`={size} must be at least partition.min_samples="
            f"{config.min_samples} and at most the {feasible} that the rarest class allows."
        )
    queues = {
        label: rng.permutation(np.flatnonzero(y == label)).tolist() for label in range(classes)
    }
    assigned = []
    for client in range(clients):
        counts = largest_remainder(wants[client], size)
        rows = [
            queues[label].pop()
            for label in range(classes)
            for _ in range(min(counts[label], len(queues[label])))
        ]
        assigned.append(np.array(rows, dtype=np.int64))
    return assigned


def quantity(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Draw the clients' shares of the pool from Dirichlet(alpha), and their samples at random."""
    counts = largest_remainder(dirichlet(config.alpha, clients, rng), len(y))
    return list(np.split(rng.permutation(len(y)), np.cumsum(counts)[:-1]))


def long_tail(y: Indices, classes: int, imbalance: float, rng: np.random.Generator) -> Indices:
    """Return the ascending positions of samples whose class counts fall exponentially.

    The class at place c of C has n_max mu^(c / (C - 1)) samples (Cui et al., 2019, section 5.1),
    rounded and at least one, or all that it has if these are fewer; n_max is the size of the
    largest class. Their order does not depend on the seed, so that the rare classes are the same
    ones in all repetitions of a comparison.

    Args:
        y: Classes [n] in [0, C).
        classes: Number of classes C.
        imbalance: mu in (0, 1].
        rng: Draws the samples of each class.

    >>> y = np.repeat([0, 1, 2], 100)
    >>> kept = long_tail(y, 3, 0.01, np.random.default_rng(0))
    >>> sorted(np.bincount(y[kept]).tolist())
    [1, 10, 100]
    """
    largest, kept = np.bincount(y).max(), []
    for place, label in enumerate(generator(0, "partition").permutation(classes)):
        count = max(1, round(largest * imbalance ** (place / max(1, classes - 1))))
        kept.append(rng.permutation(np.flatnonzero(y == label))[:count])
    return np.sort(np.concatenate(kept))


def natural(dataset: Dataset, pool: Indices, config: PartitionConfig, seed: int) -> list[Indices]:
    """Return the rows of natural clients, however few; a random subset of `partition.clients`.

    Raises:
        ConfigError: The data set has no natural clients, or fewer than `partition.clients`.
    """
    groups = np.full(len(pool), -1) if dataset.groups is None else dataset.groups[pool]
    numbers = np.unique(groups[groups >= 0])
    if not len(numbers):
        raise ConfigError(
            f"`partition.scheme=natural` needs natural clients, but `{dataset.name}` has none. An"
            " NPZ file gives them in `train_groups`, a table by one CSV file per client, images by"
            " CLIENT/CLASS/* with data.client=folder."
        )
    if config.clients is not None and config.clients > len(numbers):
        raise ConfigError(
            f"`partition.clients`={config.clients} is more than the {len(numbers)} natural"
            f" clients of `{dataset.name}`. Lower it, or leave it out for all of them."
        )
    if config.clients is not None and config.clients < len(numbers):
        chosen = generator(seed, "partition", 0).choice(len(numbers), config.clients, replace=False)
        numbers = numbers[np.sort(chosen)]
    position = np.searchsorted(numbers, groups)  # [n], of each sample's client in `numbers`
    position[position == len(numbers)] = 0
    mine = np.flatnonzero(numbers[position] == groups)
    return by_client(pool[mine], position[mine], len(numbers))


SCHEMES: Final[dict[str, Scheme]] = {
    "pathological": pathological,
    "grouped": grouped,
    "quantity": quantity,
    "shards": shards,
    "extended_dirichlet": extended_dirichlet,
    "similarity": similarity,
}
