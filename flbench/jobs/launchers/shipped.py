"""Data of jobs, stored where the processes that train them can read it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from flbench.core.errors import UserError
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples, partition_key


@dataclass(frozen=True)
class StoredSamples:
    """Samples in memory that processes share.

    Attributes:
        reference: What the processes get for them.
        free: Function that gives their memory back; it is called once.
    """

    reference: Any
    free: Callable[[], None] = lambda: None


@dataclass
class _Samples:
    """Samples of one data set.

    Attributes:
        array: The samples in this process; the address of this array identifies them.
        stored: The stored samples.
        users: Keys of the partitions that use them.
    """

    array: NDArray[Any]
    stored: StoredSamples
    users: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Shipped:
    """What the process that trains a job gets, besides the job.

    Attributes:
        samples: Reference of the samples, which partitions of one data set share.
        rest: The federation without them, or a reference of it.
        partition: Content of the partition's two files, or a reference of it.
    """

    samples: Any
    rest: Any
    partition: Any


class Store:
    """Samples and partitions, stored as long as a job needs them.

    Args:
        jobs: All jobs that will be trained.
        samples: Their data.
        share: Function that stores samples for all processes.
        put: Function that stores another object, and returns what the processes get for it.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        samples: LoadedSamples,
        share: Callable[[NDArray[Any]], StoredSamples],
        put: Callable[[Any], Any] = lambda thing: thing,
    ) -> None:
        self._share, self._put = share, put
        self._loaded = samples
        self._needed = Counter(map(partition_key, jobs))
        self._shipped: dict[str, Shipped] = {}
        self._samples: dict[int, _Samples] = {}  # by the address of the array

    def ship(self, job: Job) -> Shipped:
        """Return what the process that trains a job gets.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them. The job
                has then ended.
        """
        try:
            return self._ship(job)
        except UserError:
            self.release(job)
            raise

    def _ship(self, job: Job) -> Shipped:
        key = partition_key(job)
        if key not in self._shipped:
            found = self._loaded.federation(job)
            partition = self._put(self._loaded.partition(job))
            array = found.x.numpy()
            address = array.__array_interface__["data"][0]
            if address not in self._samples:
                self._samples[address] = _Samples(array, self._share(array))
            self._samples[address].users.add(key)
            stored = self._samples[address].stored
            self._shipped[key] = Shipped(
                stored.reference, self._put(found.without_samples()), partition
            )
        return self._shipped[key]

    def release(self, job: Job) -> None:
        """Note that a job has ended."""
        key = partition_key(job)
        self._needed[key] -= 1
        if self._needed[key]:
            return
        self._shipped.pop(key, None)
        for address, samples in list(self._samples.items()):
            samples.users.discard(key)
            if not samples.users:
                del self._samples[address]
                samples.stored.free()

    def close(self) -> None:
        """Give up all references and all samples, also those of jobs that have not ended."""
        for samples in self._samples.values():
            samples.stored.free()
        self._shipped.clear()
        self._samples.clear()
