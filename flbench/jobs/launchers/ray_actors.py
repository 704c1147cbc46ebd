"""Trains several jobs at the same time, in actors of Ray."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import ray
from numpy.typing import NDArray

from flbench.core.errors import UserError
from flbench.core.imported import portable
from flbench.data.federation import Federation
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.samples import LoadedSamples, PartitionFiles, partition_key
from flbench.jobs.training import train
from flbench.workers.cluster import cluster
from flbench.workers.lost import LOST, why_lost
from flbench.workers.resources import Resources
from flbench.workers.samples import SharedSamples
from flbench.workers.shipping import Parcel, pack
from flbench.workers.supervisor import Supervisor

PERIOD: Final = 0.3  # seconds between two looks for stop signals


@contextmanager
def ray_actors(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    supervisor: Supervisor,
    tell: Callable[[str], None],
) -> Iterator["RayActors"]:
    """Context manager with a launcher on a Ray cluster, which is started for it.

    Args:
        jobs: The jobs that are left.
        samples: Their data.
        resources: Number of jobs at the same time, and the resources of each.
        supervisor: Stops the jobs after a stop signal or the loss of a server of Ray.
        tell: Function that gets notes for the user.

    Raises:
        KeyboardInterrupt: A stop signal has arrived.
        RunError: A server of Ray was lost, or a job changed the shared samples.
    """
    methods = sorted({job.config.algorithm.name for job in jobs})
    parcel = pack(samples.objects, methods)
    with cluster(resources, supervisor):
        launcher = RayActors(_Store(jobs, samples), parcel, resources, supervisor, tell)
        try:
            with supervisor.waiting():
                yield launcher
        finally:
            launcher.close()


class JobActor:
    """Trains one job after the other in one process of Ray, so that imports are done once."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def train(
        self, task: Task, samples: NDArray[Any], rest: Federation, partition: PartitionFiles
    ) -> Outcome:
        """Train a job, or what is left of it.

        Args:
            task: The job.
            samples: The samples, read-only, in memory that all processes share.
            rest: The federation without its samples.
            partition: Content of partition.npz and of partition.json.
        """
        with self._parcel.opened():
            federation = rest.with_samples(samples).reseeded(task.layer.tree["seed"])
            return train(task, federation, partition)


class _Running(NamedTuple):
    """A job, what its process gets, and the process."""

    job: Job
    task: Task
    actor: Any


class RayActors:
    """A launcher with one actor for each job that is trained at the same time.

    Args:
        store: The samples of the jobs.
        parcel: Objects of the user that the configurations name.
        resources: Number of actors, and the resources of each.
        supervisor: Stops the jobs.
        tell: Function that gets notes for the user.
    """

    def __init__(
        self,
        store: "_Store",
        parcel: Parcel,
        resources: Resources,
        supervisor: Supervisor,
        tell: Callable[[str], None],
    ) -> None:
        self.at_once = resources.concurrent
        self._store, self._supervisor, self._tell = store, supervisor, tell
        self._retries = resources.retries
        self._kind = ray.remote(JobActor).options(num_cpus=resources.cpus, num_gpus=resources.gpus)
        self._parcel = ray.put(portable(parcel, ray.cloudpickle.dumps))
        self._idle: list[Any] = []
        self._running: dict[Any, _Running] = {}  # by the reference of the outcome
        self._deaths: Counter[str] = Counter()

    def begin(self, job: Job, task: Task) -> None:
        try:
            sent = self._store.ship(job)
        except UserError:
            self._store.release(job)
            raise
        actor = self._idle.pop() if self._idle else self._kind.remote(self._parcel)
        reference = actor.train.remote(task, sent.samples.reference, sent.rest, sent.partition)
        self._running[reference] = _Running(job, task, actor)

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        done, _ = ray.wait(list(self._running), timeout=PERIOD)
        self._supervisor.check()
        for reference in done:
            job, task, actor = self._running.pop(reference)
            try:
                outcome = ray.get(reference)
            except LOST as error:
                if self._supervisor.is_over():
                    self._supervisor.check()
                self._deaths[job.name] += 1
                if self._deaths[job.name] <= self._retries:
                    self._tell(f"{job.title}: {why_lost(error)} It is started again.")
                    self.begin(job, task)
                    continue
                times = self._deaths[job.name]
                outcome = Outcome(f"{why_lost(error)} This happened {times} times.")
            else:
                self._idle.append(actor)
            self._store.release(job)
            yield job, outcome

    def close(self) -> None:
        """Give up all references to Ray's objects.

        After an interrupt, the exception holds this object until Ray is shut down, and Ray's
        library may crash when a reference ends after that.
        """
        self._running.clear()
        self._idle.clear()
        self._store.close()
        self._parcel = None


@dataclass
class _Samples:
    """Samples of one data set in Ray's object store.

    Attributes:
        array: The samples in this process; the address of this array identifies them.
        stored: The stored samples.
        users: Keys of the partitions that use them.
    """

    array: NDArray[Any]
    stored: SharedSamples
    users: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Shipped:
    """A partition in Ray's object store.

    Attributes:
        samples: The samples, which partitions of one data set share.
        rest: Reference of the federation without them.
        partition: Reference of the content of the partition's two files.
    """

    samples: SharedSamples
    rest: Any
    partition: Any


class _Store:
    """Samples and partitions in Ray's object store, as long as a job needs them.

    Args:
        jobs: All jobs that will be trained.
        samples: Their data.
    """

    def __init__(self, jobs: Sequence[Job], samples: LoadedSamples) -> None:
        self._loaded = samples
        self._needed = Counter(map(partition_key, jobs))
        self._shipped: dict[str, _Shipped] = {}
        self._samples: dict[int, _Samples] = {}  # by the address of the array

    def ship(self, job: Job) -> _Shipped:
        """Return what the process that trains a job gets.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them.
        """
        key = partition_key(job)
        if key not in self._shipped:
            found = self._loaded.federation(job)
            partition = ray.put(self._loaded.partition(job))
            array = found.x.numpy()
            address = array.__array_interface__["data"][0]
            if address not in self._samples:
                self._samples[address] = _Samples(array, SharedSamples.put(array))
            self._samples[address].users.add(key)
            stored = self._samples[address].stored
            self._shipped[key] = _Shipped(stored, ray.put(found.without_samples()), partition)
        return self._shipped[key]

    def release(self, job: Job) -> None:
        """Note that a job has ended.

        Raises:
            RunError: No other job needs its samples, and they have changed.
        """
        key = partition_key(job)
        self._needed[key] -= 1
        if self._needed[key]:
            return
        self._shipped.pop(key, None)
        for address, samples in list(self._samples.items()):
            samples.users.discard(key)
            if not samples.users:
                samples.stored.check()
                del self._samples[address]

    def close(self) -> None:
        """Give up all references."""
        self._shipped.clear()
        self._samples.clear()
