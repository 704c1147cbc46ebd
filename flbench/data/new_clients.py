"""Clients that join after the training: they are drawn from a partition and held out.

The clients of a partition are divided into those that train, which get new ids 0 to M-1, and those
that join later, with the ids M to N-1; both keep the order of the partition. Everything that a run
computes before its last round sees the first ones alone. The division depends on the partition's
seed and on its number of clients, so it is the same for all methods.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.core.wording import listed
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts
from flbench.data.partitioning import TRIES, repair, split_rows
from flbench.data.schemes import Indices, dirichlet_by_class

# Numbers of streams of the purpose `partition` beyond those of `make_partition`.
CHOICE: Final = TRIES + 2
SHIFT: Final = TRIES + 3
SHOTS: Final = TRIES + 4


def count_of(config: PartitionConfig, clients: int) -> int:
    """Return how many of the clients of a partition join after the training, 0 without any.

    A share is rounded to the nearest number of clients, and to one at least.

    Args:
        config: Section `partition`.
        clients: Number of clients N of the partition.

    Raises:
        ConfigError: No client is left that trains.

    >>> [count_of(PartitionConfig(new_clients=new), 20) for new in (None, 3, 0.2, 0.01)]
    [0, 3, 4, 1]
    """
    wanted = config.new_clients
    if wanted is None:
        return 0
    count = wanted if isinstance(wanted, int) else max(1, int(np.floor(wanted * clients + 0.5)))
    if count >= clients:
        raise ConfigError(
            f"`partition.new_clients={wanted}` leaves none of the {clients} clients of the"
            " partition to train. Lower it, or raise partition.clients."
        )
    return count


def hold_out(
    partition: ClientParts, dataset: Dataset, config: PartitionConfig, seed: int
) -> tuple[ClientParts, ClientParts | None]:
    """Divide a partition into the clients that train and those that join after the training.

    Args:
        partition: The partition of all N clients.
        dataset: Data set that its rows refer to.
        config: Section `partition`.
        seed: Seed of the run; `config.seed` takes precedence.

    Returns:
        The clients that train, and the new ones; None without new clients, and then the first is
        the partition itself.

    Raises:
        ConfigError: No client is left that trains, or the new clients cannot get other samples.
    """
    seed = seed if config.seed is None else config.seed
    count = count_of(config, partition.clients)
    if not count:
        return partition, None
    order = generator(seed, "partition", CHOICE).permutation(partition.clients)
    new, old = (sorted(some.tolist()) for some in (order[:count], order[count:]))
    parts = {part: [partition.parts[part][k] for k in new] for part in PARTS}
    names = tuple(partition.names[k] for k in new) if partition.names else ()
    first = partition.clients - count
    if config.new_alpha is not None:
        parts, names = _distributed_anew(parts, dataset, config, seed, first), ()
    if config.new_shots is not None:
        parts["train"] = [
            _few_shots(
                rows, dataset.y[rows], config.new_shots, generator(seed, "partition", SHOTS, k)
            )
            for k, rows in enumerate(parts["train"], start=first)
        ]
    numbers = listed(map(str, new), 10)
    note = (
        f"partition: {count} of {partition.clients} clients join after the training, drawn at"
        f" random (numbers {numbers} of the partition). They have the ids {first} to"
        f" {partition.clients - 1}, and the clients that train the ids 0 to {first - 1}."
    )
    training = ClientParts(
        {part: [partition.parts[part][k] for k in old] for part in PARTS},
        partition.labels,
        (*partition.notes, note),
        tuple(partition.names[k] for k in old) if partition.names else (),
    )
    return training, ClientParts(parts, partition.labels, (), names)


def joined(training: ClientParts, new: ClientParts) -> ClientParts:
    """Return a partition of the clients that train and, with the next ids, the new clients."""
    names: tuple[str, ...] = ()
    if training.names or new.names:
        begin = training.clients
        names = (
            *(training.names or map(str, range(begin))),
            *(new.names or map(str, range(begin, begin + new.clients))),
        )
    parts = {part: [*training.parts[part], *new.parts[part]] for part in PARTS}
    return replace(training, parts=parts, names=names, shifts=(*training.shifts, *new.shifts))


def _distributed_anew(
    parts: dict[str, list[Indices]],
    dataset: Dataset,
    config: PartitionConfig,
    seed: int,
    first: int,
) -> dict[str, list[Indices]]:
    """Return parts in which the samples of the new clients are distributed by `new_alpha`.

    Args:
        parts: Rows of the new clients by part.
        dataset: Data set that the rows refer to.
        config: Section `partition`.
        seed: Seed of the partition.
        first: Id of the first new client.

    Raises:
        ConfigError: The targets are not classes, or there are too few samples.
    """
    if dataset.targets is not None:
        raise ConfigError(
            f"`partition.new_alpha={config.new_alpha:g}` distributes samples by their classes, and"
            f" `{dataset.name}` has targets that are not classes. Leave it out."
        )
    count = len(parts["train"])
    pool = np.sort(np.concatenate([rows for part in PARTS for rows in parts[part]]))
    if count * config.min_samples > len(pool):
        raise ConfigError(
            f"the {count} new clients have {len(pool):,} samples, too few to distribute them anew"
            f" (partition.new_alpha) with partition.min_samples={config.min_samples} for each."
            " Lower partition.min_samples, or leave new_alpha out."
        )
    shifted = config.altered(alpha=config.new_alpha)
    assigned = dirichlet_by_class(
        dataset.y[pool], len(dataset.classes), count, shifted, generator(seed, "partition", SHIFT)
    )
    if min(map(len, assigned)) < config.min_samples:
        rng = generator(seed, "partition", SHIFT, 1)
        assigned, _, _ = repair(assigned, len(pool), config.min_samples, rng)
    rows = [pool[np.sort(positions)] for positions in assigned]
    split = [
        split_rows(mine, dataset, config.split, generator(seed, "split", first + k, 1))
        for k, mine in enumerate(rows)
    ]
    return {part: [client[k] for client in split] for k, part in enumerate(PARTS)}


def _few_shots(rows: Indices, y: Sequence[int], most: int, rng: np.random.Generator) -> Indices:
    """Return ascending rows [n] of a client, at most `most` of each class of their labels y [n]."""
    order = rng.permutation(len(rows))
    taken: dict[int, int] = {}
    chosen = []
    for position in order.tolist():
        label = int(y[position])
        taken[label] = taken.get(label, 0) + 1
        if taken[label] <= most:
            chosen.append(position)
    return rows[np.sort(np.array(chosen, dtype=np.int64))]
