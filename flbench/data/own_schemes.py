"""Partition schemes of the user: a function that distributes samples to clients."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import PartitionConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.rng import seeded
from flbench.core.user_code_errors import calling

Indices = NDArray[np.int64]

TAKES: Final = ("labels", "number of clients", "random generator")
"""What a scheme gets by position, in words."""


def assign(
    y: NDArray[Any], clients: int, config: PartitionConfig, rng: np.random.Generator
) -> tuple[list[Indices], Callable[..., Any] | None]:
    """Distribute the samples of a pool by the function that `partition.scheme` names.

    The function is called as `scheme(y, clients, rng, **partition.args)`.

    Args:
        y: Labels [n] of the pool; for other tasks targets [n, ...].
        clients: Number of clients N.
        config: Section `partition`.
        rng: Random generator.

    Returns:
        Positions in the pool, one array for each client; and the function that transforms the
        samples of a client, if the scheme returns the pair (positions, function), or None.

    Raises:
        ConfigError: There is no such function, its file has changed since the run began, it raises
            an exception, or it returns no partition.
    """
    what, arguments = f"`partition.scheme={config.scheme}`", config.args or {}
    asked = "the partition scheme of this run"
    scheme = parts.part(config.scheme, "partition", asked, "partition=...")
    if config.scheme != parts.OBJECT:
        _unchanged_source(config)
    parts.check_arguments(scheme, TAKES, arguments, what)
    cure = (
        "It must be a function of labels, number of clients and random generator that returns the"
        " positions of each client's samples."
    )
    found: list[list[Indices]] = []
    for generator in (deepcopy(rng), rng):
        transform = None
        with calling(what, cure), seeded((config.seed or 0) % 2**32):
            # The function may change what it gets.
            rows = scheme(y.copy(), clients, generator, **deepcopy(arguments))
            if isinstance(rows, tuple) and len(rows) == 2 and callable(rows[1]):
                rows, transform = rows
            found.append([np.asarray(one) for one in rows])
        _check(found[-1], len(y), clients, config, what)
    if not all(map(np.array_equal, *found)):
        raise ConfigError(
            f"{what}: two calls with the same labels and random generator return other samples of"
            " the clients. The function may draw from a random generator of its own, read a clock,"
            " or remember earlier calls. Draw from the generator that it gets."
        )
    return [one.astype(np.int64) for one in found[0]], transform


def sha256(config: PartitionConfig, partition_hash: str) -> str | None:
    """Return the SHA-256 (hex) of the source file of a scheme or, for an object, of the partition.

    Returns:
        The hash; None if the scheme is one of flbench.

    Raises:
        ConfigError: It is another one than `partition.sha256`, or the source file cannot be read.
    """
    if not config.is_own:
        return None
    if config.scheme != parts.OBJECT:
        return _unchanged_source(config)
    if config.sha256 not in (None, partition_hash):
        raise ConfigError(
            "the partition scheme that was given makes another partition: its SHA-256 was"
            f" {config.sha256} and is now {partition_hash}. Give the same scheme, or start a new"
            " run."
        )
    return partition_hash


def _unchanged_source(config: PartitionConfig) -> str | None:
    """Return the hash of the file of a function; raise a ConfigError if it is another one."""
    parts.find(config.scheme)  # a process that got the partition from another has not called it
    cure = "Restore the source, or start a new run without `partition.sha256`."
    whose = f"`{config.scheme}`"
    return source_hash.checked(None, config.scheme, config.sha256, whose, cure)


def _check(
    rows: list[Indices], pool: int, clients: int, config: PartitionConfig, what: str
) -> None:
    """Raise a ConfigError if what a scheme returned is not a partition of n samples to clients."""
    if len(rows) != clients:
        raise ConfigError(
            f"{what} must return the positions of {clients} clients (partition.clients), got"
            f" {len(rows)}. Correct the function, or set `partition.clients`."
        )
    taken = np.zeros(pool, dtype=np.int64)
    for client, mine in enumerate(rows):
        is_right = mine.ndim == 1 and (mine.dtype.kind in "iu" or not mine.size)
        is_right = is_right and bool(((mine >= 0) & (mine < pool)).all())
        if is_right:
            np.add.at(taken, mine.astype(np.int64), 1)
        if not is_right or len(mine) < config.min_samples or taken.max() > 1:
            raise ConfigError(
                f"{what}: client {client} must have at least {config.min_samples}"
                f" (partition.min_samples) different whole numbers in [0, {pool}), the positions in"
                " the pool of samples that no other client has. Correct the function."
            )
