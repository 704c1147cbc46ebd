"""Trains several jobs at the same time, in the workers of a pool."""

import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers.attempts import Lost
from flbench.jobs.launchers.shipped import Store
from flbench.workers.pool import Pool

PERIOD: Final = 0.3  # seconds between two looks at lost jobs


class _Running(NamedTuple):
    """A job, and what its process gets."""

    job: Job
    task: Task


class Pooled:
    """A launcher with one worker for each job that is trained at the same time."""

    def __init__(self, at_once: int, pool: Pool, store: Store, lost: Lost) -> None:
        self.at_once = at_once
        self._pool, self._store, self._lost = pool, store, lost
        self._running: dict[str, _Running] = {}

    def begin(self, job: Job, task: Task) -> None:
        sent = self._store.ship(job)
        self._running[job.name] = _Running(job, task)
        self._pool.submit(job.name, "train", task, sent.samples, sent.rest, sent.partition)

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        yield from self._begin_again()
        if not self._running:
            time.sleep(PERIOD)
        for one in self._pool.ended(PERIOD):
            job, task = self._running.pop(one.key)
            lost, outcome = one.lost, one.value
            if lost is not None and (outcome := self._lost.add(job, task, lost)) is None:
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
        """End all workers, also in the middle of a job, which resumes from its checkpoint."""
        self._running.clear()
        self._pool.close()
        self._store.close()
