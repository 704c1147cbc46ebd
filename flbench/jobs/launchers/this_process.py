"""Trains jobs in this process, one after the other."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from flbench.callbacks import Callback
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.samples import LoadedSamples
from flbench.jobs.training import train

OpenDisplay = Callable[[Job], AbstractContextManager[Callback | None]]


class ThisProcess:
    """A launcher that trains a job when it begins.

    Args:
        samples: The data of the jobs.
        open_display: Function that opens the display of the progress within a job; None for none.
    """

    at_once: Final = 1

    def __init__(self, samples: LoadedSamples, open_display: OpenDisplay | None = None) -> None:
        self._samples = samples
        self._open_display: OpenDisplay = open_display or (lambda job: nullcontext())
        self._ended: list[tuple[Job, Outcome]] = []

    def begin(self, job: Job, task: Task) -> None:
        with self._open_display(job) as display:
            federation, partition = self._samples.federation(job), self._samples.partition(job)
            self._ended.append((job, train(task, federation, partition, display)))

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        found, self._ended = self._ended, []
        return found
