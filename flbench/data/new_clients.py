"""Clients that join after the training: drawn from a partition, or named, and held out.

The clients of a partition are divided into those that train, which get new ids 0 to M-1, and those
that join later, with the ids M to N-1; both keep the order of the partition. Everything that a run
computes before its last round sees the first ones alone. The division depends on the partition's
seed and on its number of clients, so it is the same for all methods.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.rng import generator
from flbench.core.wording import listed
from flbench.data.dataset import PARTS
from flbench.data.partition import ClientParts
from flbench.data.partitioning import TRIES

CHOICE: Final = TRIES + 2
"""Number of the stream of the purpose `partition` that draws the new clients."""


def chosen(partition: ClientParts, config: PartitionConfig, seed: int) -> list[int]:
    """Return the ascending numbers of the clients that join after the training.

    A share is rounded to the nearest number of clients, and to one at least.

    Raises:
        ConfigError: No client is left that trains, or no client has a name that is given.
    """
    wanted, clients = config.new_clients, partition.clients
    if isinstance(wanted, tuple):
        if unknown := [name for name in wanted if name not in partition.names]:
            hint = did_you_mean(unknown[0], partition.names)
            raise ConfigError(
                f"`partition.new_clients` names `{unknown[0]}`, and the {clients} clients of the"
                f" partition have other names.{hint}"
            )
        numbers = [k for k, name in enumerate(partition.names) if name in wanted]
    else:
        is_number = isinstance(wanted, int)
        count = wanted if is_number else max(1, int(np.floor((wanted or 0) * clients + 0.5)))
        numbers = sorted(generator(seed, "partition", CHOICE).permutation(clients)[:count].tolist())
    if len(numbers) >= clients:
        shown = f"[{listed(wanted, 10)}]" if isinstance(wanted, tuple) else wanted
        raise ConfigError(
            f"`partition.new_clients={shown}` leaves none of the {clients} clients of the partition"
            " to train. Take fewer, or raise partition.clients."
        )
    return numbers


def hold_out(
    partition: ClientParts, config: PartitionConfig, seed: int
) -> tuple[ClientParts, ClientParts]:
    """Divide a partition into the clients that train and those that join after the training.

    Returns:
        The clients that train, and the new ones.

    Raises:
        ConfigError: No client is left that trains.
    """
    seed = seed if config.seed is None else config.seed
    new = chosen(partition, config, seed)
    old, first = sorted({*range(partition.clients)} - {*new}), partition.clients - len(new)
    parts = {part: [partition.parts[part][k] for k in new] for part in PARTS}
    names = tuple(partition.names[k] for k in new) if partition.names else ()
    note = (
        f"partition: the clients {listed(map(partition.called, new), 10)} of the partition join"
        f" after the training, with the ids {first} to {partition.clients - 1}."
    )
    training = replace(
        partition,
        parts={part: [partition.parts[part][k] for k in old] for part in PARTS},
        notes=(*partition.notes, note),
        names=tuple(partition.names[k] for k in old) if partition.names else (),
    )
    return training, replace(partition, parts=parts, notes=(), names=names)


def joined(training: ClientParts, new: ClientParts) -> ClientParts:
    """Return a partition of the clients that train and, with the next ids, the new clients."""
    parts = {part: [*training.parts[part], *new.parts[part]] for part in PARTS}
    return replace(
        training,
        parts=parts,
        names=(*training.names, *new.names),
        shifts=(*training.shifts, *new.shifts),
    )
