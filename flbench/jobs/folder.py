"""The folder of a campaign: a run folder for each job, and why jobs failed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.core.locked_folder import LockedFolder
from flbench.core.text import redact
from flbench.jobs.job import Job
from flbench.results import reading
from flbench.results.summary import training_failure

FAILURES: Final = "failures.json"


class JobFolder(LockedFolder):
    """The folder of a campaign, such as a study or a comparison, with a run folder for each job.

    `create` makes a new folder, `reopen` opens an existing one. Both lock it against other
    processes until `close`.

    Attributes:
        inside: Name of the folder within it that has the run folders; `create` makes it.
        what: What the folder is, for messages.
    """

    inside: ClassVar[str]
    what: ClassVar[str]

    @classmethod
    def create(cls, root: Path, name: str) -> Self:
        """Create and lock a new folder `root/name-DATE-TIME-xxxxxxxx/`.

        Raises:
            UserError: The folder cannot be created or written to.
            RunError: The disk is full or failed.
        """
        return cls.make(root.absolute(), name, cls.inside)

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open and lock the folder of an existing campaign.

        Raises:
            UserError: The folder is not of this kind, or another process writes to it.
        """
        cls.check(path)
        folder = cls(path.absolute())
        folder.lock()
        return folder

    @classmethod
    def check(cls, path: Path) -> None:
        """Raise a UserError if a path is not a folder of this kind."""
        if not path.exists():
            raise UserError(f"{path} does not exist. Name {cls.what}, which has a {cls.marker}.")
        if not (path / cls.marker).is_file():
            raise UserError(f"{path} is not {cls.what}: it has no {cls.marker}.")

    def run_folder(self, job: Job) -> Path:
        """Return the run folder of a job, which need not exist."""
        return self.path / self.inside / job.name

    def is_done(self, job: Job) -> bool:
        """Return whether a job is finished."""
        return reading.is_finished(self.run_folder(job))

    def has_failed(self, job: Job) -> bool:
        """Return whether a job that `is_done` has no result; one that failed is trained again."""
        return False

    def unfinished(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Yield the jobs that are not finished, in their order."""
        return (job for job in jobs if not self.is_done(job))

    def save_failures(self, reasons: Mapping[str, str]) -> None:
        """Write the reasons of the jobs that failed, by name of the job."""
        found = {name: redact(why) for name, why in reasons.items()}
        self.write(FAILURES, json.dumps(found) + "\n")


def read_failures(path: Path) -> dict[str, str]:
    """Return the reasons of the jobs that failed when a campaign last ran, by their names.

    Raises:
        DataError: The file is damaged.
    """
    return read_json(path / FAILURES)


def why_nothing_was_trained(path: Path) -> str | None:
    """Return why a finished run has trained nothing; None if it has, or is not finished."""
    if not reading.is_finished(path):
        return None
    run = reading.read(path)
    reason = training_failure(run.summary)
    return reason and (
        f"{reason}. Lower the learning rate, set train.clip, or check train.batch_size and"
        " train.last_batch."
    )
