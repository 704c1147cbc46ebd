"""Making a partition: distributing samples to clients and splitting those of every client.

A scheme distributes the samples of a pool to clients. If clients stay below the smallest number of
samples after a fixed number of draws, `repair` moves samples to them. Finally `split_client` splits
every client's samples into train, validation and test parts. The result depends on the labels, the
configuration and the seed alone.
"""

from heapq import heapify, heapreplace
from pathlib import Path
from typing import Final

import numpy as np

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts, Transform, label_hash, split_client
from flbench.data.schemes import Indices, Scheme, dirichlet_by_class, iid

DEFAULT_CLIENTS: Final = 20
OF_ALL_TARGETS: Final = ("iid", "quantity", "target")
"""Schemes that need no classes."""
TRIES: Final = 100  # draws of a scheme before samples are moved to clients with too few
MOST_SHARES: Final = 10**8  # clients times classes times draws, so that all draws take seconds

Split = tuple[Indices, Indices, Indices]
"""The rows of a client's train, validation and test part."""


def make_partition(
    dataset: Dataset, config: PartitionConfig, seed: int, imbalance: float = 1.0
) -> ClientParts:
    """Distribute the samples of a data set to clients and split each client's samples.

    Args:
        dataset: The data set.
        config: Section `partition`, whose seed takes precedence over that of the run.
        seed: Seed of the run.
        imbalance: `data.imbalance` in (0, 1]; see `paper_schemes.long_tail`.

    Raises:
        ConfigError: The configuration does not fit these samples, for example because there are too
            few of them.
        DataError: A saved partition is damaged or belongs to another data set.

    >>> from flbench.data.sources import digits
    >>> partition = make_partition(digits(), PartitionConfig(clients=5, scheme="iid"), seed=0)
    >>> [len(rows) for rows in partition.parts["train"]]
    [180, 180, 180, 180, 180]
    """
    seed = seed if config.seed is None else config.seed
    config = config.altered(seed=seed)
    if config.scheme == "file":
        return _saved(dataset, config, imbalance)
    pool, transform, notes = _pool(dataset, config, seed, imbalance), None, list[str]()
    if config.is_own:
        assigned, transform = _by_user(dataset, pool, config, seed)
    elif config.scheme == "natural":
        from flbench.data.paper_schemes import natural

        assigned = natural(dataset, pool, config, seed)
    else:
        assigned, notes = _distribute(dataset, pool, config, seed)
    split: list[Split]
    if dataset.starts is not None and config.scheme == "natural":
        from flbench.data.group_splits import split_by_position

        split = [
            split_by_position(rows, dataset.starts[rows], dataset.span, config.split)
            for rows in assigned
        ]
    else:
        # Every client has a random stream of its own, so its split does not depend on others.
        split = [
            split_rows(rows, dataset, config.split, generator(seed, "split", client))
            for client, rows in enumerate(assigned)
        ]
    if dataset.blocks is not None:
        owned = np.concatenate([np.unique(dataset.blocks[rows]) for rows in assigned])
        if count := int((np.bincount(owned) > 1).sum()):
            notes.append(
                f"partition: {count:,} groups (data.group) are at more than one client, since"
                " partition.scheme does not keep them together."
            )
    parts = {part: [client[k] for client in split] for k, part in enumerate(PARTS)}
    names: tuple[str, ...] = ()
    if config.scheme == "natural" and dataset.groups is not None and dataset.group_names:
        names = tuple(dataset.group_names[dataset.groups[rows[0]]] for rows in assigned)
    return ClientParts(parts, label_hash(dataset), tuple(notes), names, transform=transform)


def _saved(dataset: Dataset, config: PartitionConfig, imbalance: float) -> ClientParts:
    """Return the partition of a file."""
    from flbench.data.partition_files import load

    if imbalance < 1:
        raise ConfigError(
            f"`data.imbalance`={imbalance} chooses samples, and the saved partition {config.path}"
            " has chosen them. Leave data.imbalance out."
        )
    loaded = load(Path(str(config.path)), dataset)
    if config.clients not in (None, loaded.clients):
        raise ConfigError(
            f"`partition.clients`={config.clients}, but the saved partition {config.path} has"
            f" {loaded.clients} clients. Leave partition.clients out."
        )
    return loaded


def split_rows(
    rows: Indices, dataset: Dataset, ratios: tuple[float, float, float], rng: np.random.Generator
) -> Split:
    """Split a client's samples; those that the user has chosen are its validation part.

    The others are then split into training and test part in the ratio of the first and the third
    share. A client of which all samples are chosen is split like one that has none of them. Samples
    of one group (`Dataset.blocks`) stay in one part; see `group_splits`.
    """
    if dataset.blocks is not None:
        from flbench.data.group_splits import split_groups

        return split_groups(rows, dataset.y[rows], dataset.blocks[rows], ratios, rng)
    is_chosen = (rows >= dataset.train - dataset.validation) & (rows < dataset.train)
    others = rows[~is_chosen]
    if not dataset.validation or not len(others):
        return split_client(rows, dataset.y[rows], ratios, rng)
    train = ratios[0] / (ratios[0] + ratios[2]) if ratios[0] + ratios[2] else 1.0
    first, _, last = split_client(others, dataset.y[others], (train, 0.0, 1.0 - train), rng)
    return first, rows[is_chosen], last


def _pool(dataset: Dataset, config: PartitionConfig, seed: int, imbalance: float) -> Indices:
    """Return the ascending rows of the samples to distribute."""
    pool = np.arange(len(dataset.y) if config.pool == "merged" else dataset.train)
    if imbalance < 1:
        if dataset.targets is not None:
            raise ConfigError(
                f"`data.imbalance`={imbalance} is for classes, and `{dataset.name}` has targets"
                " that are not. Leave it out."
            )
        from flbench.data.paper_schemes import long_tail

        classes, rng = len(dataset.classes), generator(seed, "partition", TRIES + 5)
        pool = pool[long_tail(dataset.y[pool], classes, imbalance, rng)]
    if config.samples is None or config.samples >= len(pool):
        return pool
    share = config.samples / len(pool)
    rng = generator(seed, "partition", TRIES + 1)
    return split_client(pool, dataset.y[pool], (share, 0.0, 1.0 - share), rng)[0]


def _distribute(
    dataset: Dataset, pool: Indices, config: PartitionConfig, seed: int
) -> tuple[list[Indices], list[str]]:
    """Return the ascending rows of every client, and notes."""
    if _overlap(dataset):
        raise ConfigError(
            f"`partition.scheme={config.scheme}` would distribute windows of one text of"
            f" `{dataset.name}` to several clients, and windows overlap: test samples would have"
            " characters of training samples. Set partition.scheme=natural, with one text for each"
            f" client; or data.text.stride={dataset.span}, so that windows do not overlap."
        )
    if dataset.targets is not None and config.scheme not in OF_ALL_TARGETS:
        raise ConfigError(
            f"`partition.scheme={config.scheme}` distributes samples by their classes, and"
            f" `{dataset.name}` has targets that are not classes. Take {', '.join(OF_ALL_TARGETS)},"
            " natural clients, or a function of your own, which gets the targets. If they are"
            " one-hot classes, give y.argmax(1)."
        )
    y, classes = dataset.y[pool], len(dataset.classes)
    if config.scheme == "target":
        if dataset.targets is None or dataset.targets.size != len(dataset.targets):
            raise ConfigError(
                "`partition.scheme=target` distributes samples by a target that is one number, and"
                f" `{dataset.name}` has others. Take dirichlet for classes, or iid."
            )
        from flbench.data.paper_schemes import intervals

        y, classes = intervals(dataset.targets.reshape(-1), config.bins)[pool], config.bins
    clients = _clients(dataset, pool, config)
    best: list[Indices] = []
    tries = max(1, min(TRIES, MOST_SHARES // (clients * len(np.unique(y)))))
    for attempt in range(tries):
        rng = generator(seed, "partition", attempt)
        assigned = _scheme(config.scheme)(y, classes, clients, config, rng)
        if not best or min(map(len, assigned)) > min(map(len, best)):
            best = assigned
        if min(map(len, best)) >= config.min_samples:
            return [pool[np.sort(indices)] for indices in best], []
    rng = generator(seed, "partition", TRIES)
    repaired = repair(best, len(pool), config.min_samples, rng)
    small = sum(len(mine) < config.min_samples for mine in best)
    note = (
        f"partition: after {tries} draws {small} of {clients} clients still had fewer than"
        f" {config.min_samples} samples; samples were moved to them."
    )
    return [pool[np.sort(indices)] for indices in repaired], [note]


def _scheme(name: str) -> Scheme:
    """Return the function of a scheme; `target` gets intervals in the place of classes."""
    if name in ("dirichlet", "target"):
        return dirichlet_by_class
    from flbench.data.paper_schemes import SCHEMES

    return iid if name == "iid" else SCHEMES[name]


def _clients(dataset: Dataset, pool: Indices, config: PartitionConfig) -> int:
    """Return the number of clients; raise a ConfigError if the pool has too few samples for it."""
    clients = config.clients or DEFAULT_CLIENTS
    if clients * config.min_samples > len(pool):
        raise ConfigError(
            f"`partition.clients`={clients} with `partition.min_samples`={config.min_samples} needs"
            f" {clients * config.min_samples:,} samples, but the pool of `{dataset.name}` has"
            f" {len(pool):,}. Lower one of the two."
        )
    return clients


def _by_user(
    dataset: Dataset, pool: Indices, config: PartitionConfig, seed: int
) -> tuple[list[Indices], Transform | None]:
    """Return the ascending rows of every client by a scheme of the user, and its transformation.

    What the scheme returns is the user's: nothing is drawn again or moved.
    """
    from flbench.data import own_schemes

    rng, clients = generator(seed, "partition", 0), _clients(dataset, pool, config)
    chosen, transform = own_schemes.assign(dataset.truth[pool], clients, config, rng)
    if transform is not None and dataset.targets is not None:
        raise ConfigError(
            f"`partition.scheme={config.scheme}` transforms samples, which is for classes, and"
            f" `{dataset.name}` has targets that are not. Return positions alone."
        )
    return [pool[np.sort(indices)] for indices in chosen], transform


def _overlap(dataset: Dataset) -> bool:
    """Return whether two samples have a position of one text in common."""
    if dataset.starts is None:
        return False
    # Samples are in the order of the texts, and a text begins at position 0.
    steps = np.diff(dataset.starts)
    return bool(((steps > 0) & (steps < dataset.span)).any())


def repair(
    assigned: list[Indices], pool: int, minimum: int, rng: np.random.Generator
) -> list[Indices]:
    """Return the positions of the clients in a pool, with samples moved to those with too few.

    They get samples that no client has, and when none are left, samples of the client that has the
    most. Both are drawn at random.

    Args:
        assigned: Positions in the pool, one array for every client.
        pool: Size of the pool, at least `minimum` times the number of clients.
        minimum: Smallest number of samples of a client.
        rng: Random generator.

    >>> assigned = [np.array([0, 1, 2, 3]), np.array([4])]
    >>> [len(rows) for rows in repair(assigned, 5, 2, np.random.default_rng(0))]
    [3, 2]
    """
    samples = [list(rng.permutation(indices)) for indices in assigned]
    spare = rng.permutation(np.setdiff1d(np.arange(pool), np.concatenate(assigned))).tolist()
    small = [client for client in range(len(samples)) if len(samples[client]) < minimum]
    # The client with most samples is on top, the first of several. Clients that get samples here
    # never have more than `minimum`, and the largest client has more, so they can stay out.
    largest = [(-len(rows), client) for client, rows in enumerate(samples) if len(rows) > minimum]
    heapify(largest)
    for client in small:
        while len(samples[client]) < minimum:
            if spare:
                samples[client].append(spare.pop())
            else:
                size, donor = largest[0]
                samples[client].append(samples[donor].pop())
                heapreplace(largest, (size + 1, donor))
    return [np.array(indices, dtype=np.int64) for indices in samples]
