"""Trains several jobs at the same time, in processes of this machine."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import cloudpickle
from numpy.typing import NDArray

from flbench.core.errors import RunError
from flbench.core.imported import portable, where_to_put
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.attempts import Attempts
from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from flbench.workers import frames
from flbench.workers.fork_server import LocalProcess, started
from flbench.workers.resources import Resources
from flbench.workers.shipping import Parcel, pack
from flbench.workers.supervisor import Supervisor

PERIOD: Final = 0.3  # seconds between two looks for stop signals
DIED: Final = "its process died: it was killed, or memory ran out."


@contextmanager
def local_processes(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    supervisor: Supervisor,
    tell: Callable[[str], None],
) -> Iterator["LocalProcesses"]:
    """Context manager with a launcher whose processes end with it.

    Args:
        jobs: The jobs that are left.
        samples: Their data.
        resources: Number of jobs at the same time.
        supervisor: Stops the jobs after a stop signal.
        tell: Function that gets notes for the user.

    Raises:
        KeyboardInterrupt: A stop signal has arrived.
        RunError: The system starts no further process.
    """
    methods = sorted({job.config.algorithm.name for job in jobs})
    parcel = pack(samples.objects, methods)
    with started(), supervisor.waiting():
        store = Store(jobs, samples, _stored)
        launcher = LocalProcesses(store, parcel, resources, supervisor, tell)
        try:
            yield launcher
        finally:
            launcher.close()


def quiet_worker(parcel: Parcel) -> JobWorker:
    """Return what trains jobs in this process, which prints nothing from now on.

    Several processes would print at the same time, and into the display of the progress.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    return JobWorker(parcel)


class LocalProcesses:
    """A launcher with one process for each job that is trained at the same time.

    Args:
        store: The samples of the jobs.
        parcel: Objects of the user that the configurations name.
        resources: Number of processes.
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
        self.at_once = resources.concurrent
        self._store, self._supervisor = store, supervisor
        self._attempts = Attempts(resources.retries, tell)
        self._start = partial(LocalProcess, quiet_worker, portable(parcel, cloudpickle.dumps))
        self._idle: list[LocalProcess] = []
        self._running: dict[LocalProcess, tuple[Job, Task]] = {}

    def begin(self, job: Job, task: Task) -> None:
        sent = self._store.ship(job)
        message = frames.packed(("train", (task, sent.samples, sent.rest, sent.partition)))
        try:
            process = self._idle.pop() if self._idle else self._start()
        except OSError as error:
            raise RunError(
                f"the system starts no further process ({error}). Use --jobs 1, or end other"
                " processes."
            ) from error
        self._running[process] = job, task
        try:
            process.call(message)
        except OSError:  # it has died; `ended` finds out
            return

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        done = frames.readable(list(self._running), PERIOD)
        self._supervisor.check()
        for process in done:
            job, task = self._running[process]
            outcome: Outcome | None
            try:
                if not process.is_ready:
                    process.check()
                    continue
                outcome = process.answer()
            except EOFError:
                self._end(process)
                outcome = self._attempts.after_loss(job, DIED)
                if outcome is None:
                    self.begin(job, task)
                    continue
            except Exception as error:
                if process.is_ready:
                    raise
                # Such as a module of the user that the process cannot import: no use to try again.
                self._end(process)
                why = f"{type(error).__name__}: {error}"
                outcome = Outcome(f"its process could not begin ({why}).{where_to_put(why)}")
            else:
                del self._running[process]
                self._idle.append(process)
            self._store.release(job)
            yield job, outcome

    def _end(self, process: LocalProcess) -> None:
        """End a process that trains nothing any more."""
        del self._running[process]
        process.close()

    def close(self) -> None:
        """End all processes, also in the middle of a job, which resumes from its checkpoint."""
        for process in (*self._running, *self._idle):
            process.close()
        self._running.clear()
        self._idle.clear()
        self._store.close()


def _stored(samples: NDArray[Any]) -> StoredSamples:
    """Copy samples to memory that all processes share."""
    shared = frames.SharedArray.of(samples)
    return StoredSamples(shared, free=shared.close)
