"""The partitioned data sets of a study in Ray's object store, for all of its workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import ray

from flbench.data.federation import Federation
from flbench.workers.actor_pool import check_unchanged, digest

Rests = Mapping[int | None, tuple[int, Federation]]


@dataclass(frozen=True)
class SharedFederations:
    """Federations whose samples lie in Ray's object store.

    Attributes:
        rests: By the seed of the partition (None for that of the search): the position of its
            samples in `references`, and the federation without its samples.
    """

    rests: Rests
    _stored: tuple[tuple[Any, str], ...]  # references of samples, and their hashes

    @classmethod
    def put(cls, searched: Federation, partitions: Mapping[int, Federation]) -> Self:
        """Store the samples of federations; those that share their samples share one copy.

        The samples of tables differ between partitions, because missing values and words are
        encoded by what is in the training parts.

        Args:
            searched: Federation of the search.
            partitions: Federations of the final trainings by the seed of the partition.
        """
        stored: dict[int, tuple[int, tuple[Any, str]]] = {}  # by the address of the samples
        rests = {}
        federations: list[tuple[int | None, Federation]] = [(None, searched), *partitions.items()]
        for seed, one in federations:
            address = one.x.data_ptr()
            if address not in stored:
                samples = one.x.numpy()
                stored[address] = len(stored), (ray.put(samples), digest(samples))
            rests[seed] = stored[address][0], one.without_samples()
        return cls(rests, tuple(pair for _, pair in stored.values()))

    @property
    def references(self) -> tuple[Any, ...]:
        """References of the samples."""
        return tuple(reference for reference, _ in self._stored)

    def check(self) -> None:
        """Raise a RunError if a training has changed samples."""
        for reference, sha256 in self._stored:
            check_unchanged(ray.get(reference), sha256)
