"""Trains jobs in this process, one after the other."""

from collections.abc import Iterable
from typing import Final

from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.samples import LoadedSamples
from flbench.jobs.training import train


class ThisProcess:
    """A launcher that trains a job when it begins."""

    at_once: Final = 1

    def __init__(self, samples: LoadedSamples) -> None:
        self._samples = samples
        self._ended: list[tuple[Job, Outcome]] = []

    def begin(self, job: Job, task: Task) -> None:
        federation, partition = self._samples.federation(job), self._samples.partition(job)
        self._ended.append((job, train(task, federation, partition)))

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        found, self._ended = self._ended, []
        return found
