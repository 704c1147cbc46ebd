"""Trains several jobs at the same time, in actors of Ray."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import ray
from numpy.typing import NDArray

from flbench.core.errors import RunError
from flbench.core.imported import portable
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.attempts import Attempts, Lost
from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from flbench.workers.cluster import cluster
from flbench.workers.lost import could_not_begin, why_lost
from flbench.workers.pool import ActorPool, there
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
        launcher = RayActors(
            Store(jobs, samples, _stored, ray.put), parcel, resources, supervisor, tell
        )
        try:
            with supervisor.waiting():
                yield launcher
        finally:
            launcher.close()


class _Running(NamedTuple):
    """A job, and what its process gets."""

    job: Job
    task: Task


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
        store: Store,
        parcel: Parcel,
        resources: Resources,
        supervisor: Supervisor,
        tell: Callable[[str], None],
    ) -> None:
        self.at_once = _at_once(resources)
        self._store, self._supervisor = store, supervisor
        self._attempts = Attempts(resources.retries, tell)
        needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        kind = ray.remote(JobWorker).options(num_cpus=resources.cpus, num_gpus=resources.gpus)
        self._parcel = ray.put(portable(parcel, ray.cloudpickle.dumps))
        self._pool = ActorPool(
            lambda: kind.remote(self._parcel),
            self.at_once,
            needs,
            f"a {resources.kind.name}",
            resources.engine.wait_seconds,
            tell,
        )
        self._running: dict[str, _Running] = {}
        self._lost = Lost(resources.engine.wait_seconds, tell)

    def begin(self, job: Job, task: Task) -> None:
        sent = self._store.ship(job)
        self._running[job.name] = _Running(job, task)
        self._pool.submit(job.name, "train", task, sent.samples, sent.rest, sent.partition)

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        yield from self._begin_again()
        if not self._running:
            time.sleep(PERIOD)
        try:
            found = self._pool.ended(PERIOD)
        except RunError as error:
            raise RunError(f"{error} {self._supervisor.note}".rstrip()) from error
        self._supervisor.check()
        for name, outcome, lost in found:
            job, task = self._running.pop(name)
            if lost is not None:
                if self._supervisor.is_over():
                    self._supervisor.check()
                why = why_lost(lost)
                if could_not_begin(lost):  # another process could not either
                    outcome = Outcome(why)
                else:
                    outcome = self._attempts.after_loss(job, why)
                if outcome is None:
                    self._lost.add(job, task)
                    continue
            self._store.release(job)
            yield job, outcome

    def _begin_again(self) -> Iterator[tuple[Job, Outcome]]:
        """Begin lost jobs again; yield those that cannot be begun."""
        for job, task, outcome in self._lost.free():
            if outcome is None:
                self.begin(job, task)
            else:
                self._store.release(job)
                yield job, outcome

    def close(self) -> None:
        """Give up all references to Ray's objects.

        After an interrupt, the exception holds this object until Ray is shut down, and Ray's
        library may crash when a reference ends after that.
        """
        self._running.clear()
        self._pool.close()
        self._store.close()
        self._parcel = None


def _at_once(resources: Resources) -> int:
    """Return how many jobs the cluster can train at the same time, at most as many as asked for."""
    needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
    found = there(needs)
    room = [int(found[key] / amount + 1e-9) for key, amount in needs.items() if amount]
    return max(1, min(resources.concurrent, *room))


def _stored(samples: NDArray[Any]) -> StoredSamples:
    """Put samples into Ray's object store. At the end it is checked that they have not changed."""
    shared = SharedSamples.put(samples)
    return StoredSamples(shared.reference, shared.check)
