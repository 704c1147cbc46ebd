"""What a launcher of jobs does."""

from collections.abc import Iterable
from typing import Protocol

from flbench.jobs.job import Job, Outcome, Task


class Launcher(Protocol):
    """Trains jobs in processes of one kind.

    A launcher need not know what jobs belong to, and the executor not where they are trained.

    Attributes:
        at_once: Number of jobs that may be trained at the same time.
    """

    @property
    def at_once(self) -> int: ...

    def begin(self, job: Job, task: Task) -> None:
        """Begin the training of a job. A launcher may wait for its end.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them.
        """

    def ended(self) -> Iterable[tuple[Job, Outcome]]:
        """Return the jobs that have ended since the last call, each once, with how they ended.

        If there is none, wait for a moment. A job whose process dies is begun again, or ends with
        an outcome that says so.
        """
