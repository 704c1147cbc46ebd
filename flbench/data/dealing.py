"""Who holds which samples: pure functions of (labels, scheme, seed) that always end.

A scheme deals the pool to clients; `repair` brings clients below the minimum up to it and says so;
then every client's samples are split into train, validation and test parts, stratified where counts
allow. A partition has a content hash and can be saved, shared and loaded.
"""

from pathlib import Path
from typing import Final

import numpy as np

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.data import partition_files
from flbench.data.dataset import Dataset
from flbench.data.partition import PARTS, Partition, label_hash
from flbench.data.schemes import SCHEMES, Indices, largest_remainder, natural

DEFAULT_CLIENTS: Final = 20
TRIES: Final = 100


def make_partition(dataset: Dataset, config: PartitionConfig, seed: int) -> Partition:
    """Deal a data set to clients and split each client's samples.

    Args:
        dataset: the samples.
        config: scheme and its numbers.
        seed: the run's; `config.seed` wins over it.
    Raises: ConfigError where the configuration cannot be met by these samples.
    """
    seed = seed if config.seed is None else config.seed
    if config.scheme == "file":
        loaded = partition_files.load(Path(str(config.path)), dataset)
        if config.clients not in (None, loaded.clients):
            raise ConfigError(
                f"`partition.clients`={config.clients}, but the saved partition {config.path} has"
                f" {loaded.clients} clients. Leave partition.clients out."
            )
        return loaded
    pool, notes = _pool(dataset, config, seed)
    dealt, more = _deal(dataset, pool, config, seed)
    notes += more
    # The clients are split one by one, each from a stream of its own.
    split = [
        split_client(indices, dataset.y[indices], config.split, generator(seed, "split", client))
        for client, indices in enumerate(dealt)
    ]
    parts = {part: [client[k] for client in split] for k, part in enumerate(PARTS)}
    return Partition(parts, label_hash(dataset), tuple(notes))


def _pool(dataset: Dataset, config: PartitionConfig, seed: int) -> tuple[Indices, list[str]]:
    """Return the ascending indices of the samples that are dealt, and notes."""
    pool = np.arange(len(dataset.y) if config.pool == "merged" else dataset.train)
    if config.samples is None:
        return pool, []
    if config.samples >= len(pool):
        note = (
            f"partition: the pool has {len(pool):,} samples, and partition.samples takes them all."
        )
        return pool, [note] if config.samples > len(pool) else []
    share = config.samples / len(pool)
    rng = generator(seed, "partition", TRIES + 1)
    drawn, _, _ = split_client(pool, dataset.y[pool], (share, 0.0, 1.0 - share), rng)
    return drawn, []


def _deal(
    dataset: Dataset, pool: Indices, config: PartitionConfig, seed: int
) -> tuple[list[Indices], list[str]]:
    """Return the ascending indices of every client, and notes."""
    if config.scheme == "natural":
        return natural(dataset, pool, config, seed)
    clients = config.clients or DEFAULT_CLIENTS
    if clients * config.min_samples > len(pool):
        raise ConfigError(
            f"`partition.clients`={clients} with `partition.min_samples`={config.min_samples} need"
            f" {clients * config.min_samples:,} samples, but the pool of `{dataset.name}` has"
            f" {len(pool):,}. Lower one of the two."
        )
    best: list[Indices] = []
    for attempt in range(TRIES):
        rng = generator(seed, "partition", attempt)
        dealt = SCHEMES[config.scheme](dataset.y[pool], len(dataset.classes), clients, config, rng)
        if not best or min(map(len, dealt)) > min(map(len, best)):
            best = dealt
        if min(map(len, best)) >= config.min_samples:
            drawn = f"partition: drawn {attempt + 1} times until all had the minimum."
            return [pool[np.sort(indices)] for indices in best], [drawn] if attempt else []
    repaired, moved, poor = repair(
        best, len(pool), config.min_samples, generator(seed, "partition", TRIES)
    )
    note = (
        f"partition: after {TRIES} draws {poor} of {clients} clients still had fewer than"
        f" {config.min_samples} samples; {moved} samples were moved to them."
    )
    return [pool[np.sort(indices)] for indices in repaired], [note]


def repair(
    dealt: list[Indices], pool: int, minimum: int, rng: np.random.Generator
) -> tuple[list[Indices], int, int]:
    """Bring clients below the minimum up to it.

    With samples that nobody was dealt as long as there are any, then with samples of the largest
    clients, both drawn at random.

    Args:
        dealt: positions in the pool, for every client.
        pool: its size, at least `minimum` for each client.
        minimum: of samples.
        rng: the stream.
    Returns: the clients' samples, how many were moved, and how many clients were below the minimum.
    """
    held = [list(rng.permutation(indices)) for indices in dealt]
    spare = rng.permutation(np.setdiff1d(np.arange(pool), np.concatenate(dealt))).tolist()
    poor = [client for client in range(len(held)) if len(held[client]) < minimum]
    moved = 0
    for client in poor:
        while len(held[client]) < minimum:
            largest = max(range(len(held)), key=lambda j: (len(held[j]), -j))
            held[client].append(spare.pop() if spare else held[largest].pop())
            moved += 1
    return [np.array(indices, dtype=np.int64) for indices in held], moved, len(poor)


def split_client(
    indices: Indices, y: Indices, ratios: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Split a client's samples into train, validation and test, by class where counts allow.

    Sizes are the ratios by largest remainder, with at least one training sample. Each class gives
    the whole part of its share to each side; the samples left over fill the sides up in a drawn
    order.
    """
    sizes = largest_remainder(np.array(ratios), len(indices))
    if sizes[0] == 0 and len(indices):
        sizes[sizes.index(max(sizes))] -= 1
        sizes[0] = 1
    sides: list[list[int]] = [[], [], []]
    rest: list[int] = []
    for label in np.unique(y):
        mine = rng.permutation(indices[y == label]).tolist()
        for side, ratio in zip(sides, ratios, strict=True):
            whole = int(np.floor(ratio * int((y == label).sum()) + 1e-9))
            side += mine[:whole]
            mine = mine[whole:]
        rest += mine
    rest = rng.permutation(rest).astype(np.int64).tolist()
    for side, size in zip(sides, sizes, strict=True):
        while len(side) > size:  # whole shares can exceed a size that gave one sample to training
            rest.append(side.pop())
    for side, size in zip(sides, sizes, strict=True):
        while len(side) < size:
            side.append(rest.pop())
    train, validation, test = (np.sort(np.array(side, dtype=np.int64)) for side in sides)
    return train, validation, test
