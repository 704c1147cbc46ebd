"""How often a job whose process was lost is begun again."""

from collections import Counter
from collections.abc import Callable

from flbench.jobs.job import Job, Outcome


class Attempts:
    """Counts the losses of processes by job; a job is begun again `retries` times."""

    def __init__(self, retries: int, tell: Callable[[str], None]) -> None:
        self._retries, self._tell = retries, tell
        self._losses: Counter[str] = Counter()

    def after_loss(self, job: Job, why: str) -> Outcome | None:
        """Note that the process of a job was lost.

        Returns:
            How the job has ended; None if it is to be begun again, of which the user is told.
        """
        self._losses[job.name] += 1
        if self._losses[job.name] <= self._retries:
            self._tell(f"{job.title}: {why} It is started again.")
            return None
        return Outcome(f"{why} This happened {self._losses[job.name]} times.")
