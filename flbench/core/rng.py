"""Randomness without position: a stream has a name, and no place in a sequence.

Every stream is named by (seed, purpose, key), so nothing depends on order, workers or a resume.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
)
"""Append only: the position of a purpose is part of its stream."""


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of the stream (seed, purpose, key).

    Equal arguments give equal streams on every machine.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *key))
    return np.random.Generator(np.random.PCG64(sequence))


def torch_seed(seed: int, purpose: str) -> int:
    """Return a seed in [0, 2^63) for what only PyTorch can draw: initial weights."""
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose),))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Draw:
    """The random streams of one round.

    Attributes:
        seed: the run's seed.
        key: `(round,)`, and `(round, turn + 1)` in a set-up stage, whose rounds do not advance the
            round.
        clients: N.
    """

    seed: int
    key: tuple[int, ...]
    clients: int

    @property
    def round(self) -> int:
        """Rounds done before this one."""
        return self.key[0]

    def cohort(self, participation: float) -> Tensor:
        """Return the cohort: max(1, floor(participation N + 0.5)) ascending ids.

        Drawn without replacement; equal for all methods.
        """
        size = max(1, int(np.floor(participation * self.clients + 0.5)))
        chosen = generator(self.seed, "cohort", *self.key).choice(
            self.clients, size=size, replace=False
        )
        return torch.from_numpy(np.sort(chosen).astype(np.int64))

    def sample_order(self, client: int, epoch: int, n: int) -> NDArray[np.int64]:
        """Return the order [n] of a client's samples in an epoch.

        The phase is not in the key, so equal phases see equal batches.
        """
        return generator(self.seed, "batch", client, epoch, *self.key).permutation(n)

    def noise_keys(
        self,
        client: int | NDArray[np.int64],
        epoch: int | NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return one noise key int64 per sample, in the shape of `rows`.

        From seed, client, round, epoch and the sample's row in the data set; clients and epochs
        broadcast to the rows.
        """
        one, other = (
            _scramble(base + np.array(number, dtype=np.uint64, ndmin=1))
            for base, number in zip(_noise(self.seed, self.key), (client, epoch), strict=True)
        )
        return _scramble(rows.astype(np.uint64) ^ one ^ (other >> np.uint64(1))).view(np.int64)

    def method_generator(self, *key: int) -> np.random.Generator:
        """Return a generator for what a method draws itself: starts of k-means, noise."""
        return generator(self.seed, "method", *key, *self.key)


@lru_cache(maxsize=8)
def _noise(seed: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return two numbers of a round, from which those of its clients and epochs follow."""
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index("noise"), *key))
    return sequence.generate_state(2, np.uint64).astype(np.uint64)


def _scramble(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread 64-bit numbers evenly.

    The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(key: Tensor, unit: int) -> Tensor:
    """Return one number in [0, 1) per sample: a hash of its key and `unit`.

    Args:
        key: [B] int64, as in `Batch.key`.
        unit: >= 0, numbers the uses of a key; different units give independent numbers.
    """
    step = (unit + 1) * 0x1E3779B97F4A7C15 % 2**64
    z = key + (step - 2**64 if step >= 2**63 else step)
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return _shift(z ^ _shift(z, 31), 11).double() * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift int64 right and fill with zeros (torch fills with the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
