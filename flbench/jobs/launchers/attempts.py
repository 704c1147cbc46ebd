"""Jobs whose processes were lost: how often, and when they are begun again."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flbench.core import files
from flbench.jobs.job import Job, Outcome, Task
from flbench.reports.terminal import SILENCE


@dataclass
class _Waiting:
    """A lost job, the time of the loss, and the time when the user is told of the wait."""

    job: Job
    task: Task
    since: float
    due: float


class Lost:
    """Jobs whose processes were lost, until nothing writes to their folders any more.

    The process of a job trains on if its machine is cut off from this one and not from the folder.

    Args:
        retries: How often a job is begun again.
        patience: Seconds that a job may wait.
        tell: Function that gets notes for the user.
    """

    def __init__(self, retries: int, patience: float, tell: Callable[[str], None]) -> None:
        self._retries, self._patience, self._tell = retries, patience, tell
        self._losses: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    def add(self, job: Job, task: Task, why: str) -> Outcome | None:
        """Add a job that is to be begun again, of which the user is told; or return how it ended.

        Args:
            job: The job.
            task: What its process gets.
            why: A sentence about the loss.
        """
        self._losses[job.name] += 1
        if self._losses[job.name] > self._retries:
            return Outcome(f"{why} This happened {self._losses[job.name]} times.")
        self._tell(f"{job.title}: {why} It is started again.")
        now = time.monotonic()
        self._waiting.append(_Waiting(job, task, now, now))
        return None

    def free(self) -> Iterator[tuple[Job, Task, Outcome | None]]:
        """Yield each job once that need not wait, with how it ends if it cannot be begun again."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            path, now = one.task.path, time.monotonic()
            waited = now - one.since
            if path is None or not files.is_locked(path):
                yield one.job, one.task, None
            elif waited >= self._patience:
                why = (
                    f"its machine was lost, and its process there has written to {path} for"
                    f" {waited:.0f} s since then. `engine.wait_seconds`={self._patience:g} ends"
                    " this wait: end that process."
                )
                yield one.job, one.task, Outcome(why)
            else:
                self._waiting.append(one)
                if now >= one.due:
                    one.due = now + SILENCE
                    self._tell(
                        f"{one.job.title}: waiting until its process on the lost machine has ended,"
                        f" which still writes to {path} ({waited:.0f} s). Ray ends the processes of"
                        " a machine about a minute after it was cut off."
                    )
