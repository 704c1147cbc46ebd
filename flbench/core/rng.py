"""Random streams that are identified by (seed, purpose, key).

Every use of randomness creates the generator of its own stream instead of advancing a shared one.
Results therefore do not depend on the order in which clients train, on the number of workers, or
on whether a run was resumed.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PURPOSES: Final = (
    "partition",
    "split",
    "model",
    "cohort",
    "batch",
    "noise",
    "rows",
    "common",
    "method",
    "search",
    "module",
    "shift",
)
"""The purposes of streams. Only append: the index of a purpose is part of its stream's seed."""


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a new generator at the beginning of the stream (seed, purpose, key).

    Equal arguments give equal streams on every machine.

    Args:
        seed: Seed of the run, at least 0.
        purpose: One of `PURPOSES`.
        key: Numbers >= 0 that separate the streams of one purpose, such as round and client.

    Raises:
        ValueError: The purpose is unknown, or a number is negative.

    >>> a, b = generator(0, "batch", 3, 1), generator(0, "batch", 3, 1)
    >>> bool((a.permutation(5) == b.permutation(5)).all())
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *key))
    return np.random.Generator(np.random.PCG64(sequence))


def torch_seed(seed: int, purpose: str) -> int:
    """Return a seed in [0, 2^63) for a PyTorch generator, which draws the initial weights.

    Args:
        seed: Seed of the run, at least 0.
        purpose: One of `PURPOSES`.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose),))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Return a context manager in which the global random generators begin at a seed.

    They are those of PyTorch (of the CPU, and of GPUs in use), NumPy and Python. Afterwards they
    have their former states, and PyTorch's default type of tensors is the former one. Only code
    that flbench does not own draws from them, and PyTorch's random layers.

    Args:
        seed: The seed, in [0, 2^32).

    >>> with seeded(3):
    ...     first = random.random()
    >>> with seeded(3):
    ...     bool(first == random.random())
    True
    """
    dtype, of_numpy, of_python = torch.get_default_dtype(), np.random.get_state(), random.getstate()
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(torch.cuda.device_count()) if is_used else ()):
        if is_used or _is_gpu_there():
            torch.manual_seed(seed)  # a GPU that is not in use yet is seeded when it is first used
        else:
            # `torch.manual_seed` takes 0.6 ms without a GPU: it notes the call's traceback for a
            # later use of one.
            torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def positions() -> tuple[Any, ...]:
    """Return the states of NumPy's and Python's global generators, which can be compared.

    >>> before = positions()
    >>> _ = random.random()
    >>> before == positions()
    False
    """
    name, key, *rest = np.random.get_state()
    return name, np.asarray(key).tobytes(), *rest, random.getstate()


@cache
def _is_gpu_there() -> bool:
    """Return whether this process has a GPU. It is looked for once."""
    return torch.cuda.is_available()


@dataclass(frozen=True)
class Draw:
    """The random streams of one round.

    Attributes:
        seed: Seed of the run.
        key: `(round,)`; in a set-up stage, whose rounds do not advance the round number,
            `(round, stage + 1, stage_round + 1)`; after the last round, for clients that join
            later, `(rounds, 0)`.
        clients: Number of clients N.
    """

    seed: int
    key: tuple[int, ...]
    clients: int

    @property
    def round(self) -> int:
        """Number of rounds completed before this one."""
        return self.key[0]

    @property
    def title(self) -> str:
        """The round, counted from 1, for messages.

        >>> [Draw(0, key, 10).title for key in ((6,), (0, 1, 3), (100, 0))]
        ['round 7', 'round 3 of the set-up', 'the evaluation of clients that join later']
        """
        match self.key:
            case (number,):
                return f"round {number + 1}"
            case (_, _, number):
                return f"round {number} of the set-up"
        return "the evaluation of clients that join later"

    def cohort(self, participation: float) -> Tensor:
        """Return the ids [K] int64 of a uniformly drawn cohort, in ascending order.

        K = max(1, floor(participation * N + 0.5)). Clients are drawn without replacement. The
        cohort depends on seed, round and participation alone, so it is the same for all methods.

        Args:
            participation: Share of the clients, in (0, 1].

        >>> Draw(seed=0, key=(4,), clients=10).cohort(0.3).shape
        torch.Size([3])
        """
        size = max(1, int(np.floor(participation * self.clients + 0.5)))
        chosen = generator(self.seed, "cohort", *self.key).choice(
            self.clients, size=size, replace=False
        )
        return torch.from_numpy(np.sort(chosen).astype(np.int64))

    def sample_order(self, client: int, epoch: int, n: int) -> NDArray[np.int64]:
        """Return the order [n] int64 of a client's samples in an epoch, a permutation of 0..n-1.

        The order does not depend on the phase, so two phases with equal epochs see equal batches.

        Args:
            client: Id of the client.
            epoch: Number of the epoch within the phase, from 0.
            n: Number of samples.
        """
        return generator(self.seed, "batch", client, epoch, *self.key).permutation(n)

    def noise_keys(
        self,
        client: int | NDArray[np.int64],
        epoch: int | NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return one noise key per sample, int64 in the shape of `rows`.

        A key is a hash of seed, round, client, epoch and the sample's row in the data set.

        Args:
            client: Id of the client, or an array of ids that broadcasts to `rows`.
            epoch: Number of the epoch, or an array of numbers that broadcasts to `rows`.
            rows: Rows of the samples in the data set.
        """
        of_client, of_epoch = (
            _scramble(base + np.array(number, dtype=np.uint64, ndmin=1))
            for base, number in zip(_noise(self.seed, self.key), (client, epoch), strict=True)
        )
        mixed = rows.astype(np.uint64) ^ of_client ^ (of_epoch >> np.uint64(1))
        return _scramble(mixed).view(np.int64)

    def module_seed(self, client: int, *part: int) -> int:
        """Return the seed in [0, 2^32) that a net or other code of the user draws from in a step.

        Args:
            client: Id of the client.
            part: Numbers >= 0 that separate the streams of a client; none for a phase of training.
        """
        return int(generator(self.seed, "module", client, *part, *self.key).integers(2**32))

    def method_generator(self, *key: int) -> np.random.Generator:
        """Return a generator for the draws of a method, such as starts of k-means or noise.

        Args:
            key: Numbers >= 0 that separate the streams of one round.
        """
        return generator(self.seed, "method", *key, *self.key)


@lru_cache(maxsize=8)
def _noise(seed: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return two numbers [2] uint64 of a round, from which all its noise keys are computed."""
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index("noise"), *key))
    return sequence.generate_state(2, np.uint64).astype(np.uint64)


def _scramble(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers elementwise with the finalizer of SplitMix64.

    Source: Steele, Lea and Flood, OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(key: Tensor, unit: int) -> Tensor:
    """Return one number in [0, 1) per sample, float64 [B], computed from its key.

    Args:
        key: Noise keys [B] int64 of the samples, as in `Batch.key`.
        unit: Number >= 0 of the use of the keys; different units give independent numbers.

    >>> key = torch.tensor([7, 8])
    >>> torch.equal(uniform(key, 0), uniform(key, 0)), torch.equal(uniform(key, 0), uniform(key, 1))
    (True, False)
    """
    step = (unit + 1) * 0x1E3779B97F4A7C15 % 2**64
    z = key + (step - 2**64 if step >= 2**63 else step)
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return _shift(z ^ _shift(z, 31), 11).double() * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift int64 values right and fill with zeros; PyTorch's `>>` fills with the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
