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
    scheme = _function(config)
    if config.scheme != parts.OBJECT:
        _unchanged_source(config)
    what = f"`partition.scheme={config.scheme}`"
    parts.check_arguments(scheme, TAKES, config.args or {}, what)
    again = deepcopy(rng)

    def made(rng: np.random.Generator) -> tuple[list[Any], Callable[..., Any] | None]:
        arguments = deepcopy(config.args or {})  # the function may change a list
        with seeded((config.seed or 0) % 2**32):
            returned = scheme(y.copy(), clients, rng, **arguments)
            if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1]):
                return list(returned[0]), returned[1]
            return list(returned), None

    cure = (
        "It must be a function of labels, number of clients and random generator that returns the"
        " positions of each client's samples."
    )
    with calling(what, cure):
        (rows, transform), (others, _) = made(rng), made(again)
    found = _checked(rows, len(y), clients, config, what)
    same = map(np.array_equal, found, _checked(others, len(y), clients, config, what))
    if not all(same):
        raise ConfigError(
            f"{what}: two calls with the same labels and random generator return other samples of"
            " the clients. The function may draw from a random generator of its own, read a clock,"
            " or remember earlier calls. Draw from the generator that it gets."
        )
    return found, transform


def sha256(config: PartitionConfig, partition_hash: str) -> str | None:
    """Return the SHA-256 (hex) of the source file of a scheme or, for an object, of the partition.

    Args:
        config: Section `partition`.
        partition_hash: SHA-256 of the partition that the scheme made.

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


def _function(config: PartitionConfig) -> Callable[..., Any]:
    """Return the function of a scheme."""
    what = "the partition scheme of this run"
    found = parts.part(config.scheme, "partition", what, "partition=...")
    if not callable(found):
        raise ConfigError(
            f"`partition.scheme={config.scheme}` is {type(found).__name__}, not a function of"
            " labels, number of clients and random generator."
        )
    function: Callable[..., Any] = found
    return function


def _checked(
    rows: list[Any], pool: int, clients: int, config: PartitionConfig, what: str
) -> list[Indices]:
    """Return what a scheme returned as arrays; raise a ConfigError if it is not a partition."""
    if len(rows) != clients:
        raise ConfigError(
            f"{what} must return the positions of {clients} clients (partition.clients), got"
            f" {len(rows)}. Correct the function, or set `partition.clients`."
        )
    checked: list[Indices] = []
    owner = np.full(pool, -1)
    for client, part in enumerate(rows):
        try:
            found = np.asarray(part)
        except Exception as error:
            raise ConfigError(
                f"{what}: the positions of client {client} are not an array ({error}). Return"
                " integers."
            ) from error
        if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
            raise ConfigError(
                f"{what}: client {client} must have a sequence of integers, got the shape"
                f" {list(found.shape)} and type {found.dtype}. Masks become positions by"
                " np.flatnonzero."
            )
        wrong = found[(found < 0) | (found >= pool)]
        if len(wrong):
            raise ConfigError(
                f"{what}: client {client} has the position {wrong[0]}, but the pool has {pool:,}"
                f" samples, at positions 0 to {pool - 1}."
            )
        if len(found) < config.min_samples:
            raise ConfigError(
                f"{what}: client {client} has {len(found)} samples, fewer than"
                f" `partition.min_samples`={config.min_samples}. Give it more, or lower"
                " partition.min_samples."
            )
        mine = found.astype(np.int64)
        taken = mine[owner[mine] >= 0]
        if len(taken):
            raise ConfigError(
                f"{what}: the position {taken[0]} is at two clients, {owner[taken[0]]} and"
                f" {client}. Give each sample to one client."
            )
        values, counts = np.unique(mine, return_counts=True)
        if len(values) < len(mine):
            raise ConfigError(
                f"{what}: client {client} has the position {values[counts > 1][0]} more than once."
                " Give it once."
            )
        owner[mine] = client
        checked.append(mine)
    return checked
