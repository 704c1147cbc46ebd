"""The study folder, and the folders of its trials."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.wording import in_shell
from flbench.jobs.folder import JobFolder
from flbench.jobs.job import Job
from flbench.results.study_folder import Trial, best_trial

Record = dict[str, Any]  # content of a trial.json
ENDS: Final = ("finished", "stopped", "diverged", "failed")
BEGUN: Final[Record] = {"state": "running", "reason": None, "ended": None, "lost": False}
"""Entries of a trial that begins, or goes on. `lost` is true of one that has failed because its
worker did, for the last time: a resumed study may train it again."""
OTHER_METRIC: Final = (
    "Search by another metric (--metric), or with more rounds (--rounds) or validation samples"
    " (partition.split)."
)
"""What helps where a metric tells no two trials apart."""
NEW: Final[Record] = {"round": 0, "score": None, "loss": None, "seconds": {}, "attempts": 1}


class StudyFolder(JobFolder):
    """The folder of a study. Its jobs are the trials, by the names of their folders."""

    marker = "study.json"
    option = "out"
    inside = "trials"
    what = "a study folder"

    @classmethod
    def command_to_resume(cls, path: Path) -> str:
        """Return the command that resumes a study."""
        return f"flbench tune --resume {in_shell(path)}"

    def description(self) -> Record:
        """Return the content of study.json.

        Raises:
            DataError: The file is damaged.
        """
        return read_json(self.path / self.marker)

    def records(self) -> Iterator[Record]:
        """Yield the content of the trial.json of each trial that has begun, sorted by folder.

        Raises:
            DataError: A file is damaged.
        """
        for file in sorted(self.path.glob("trials/*/*/trial.json")):
            yield read_json(file)

    def trial(self, record: Record) -> "TrialFolder":
        """Return the folder of the trial of a trial.json."""
        return TrialFolder(self.path, record["method"], record["index"])

    def is_done(self, job: Job) -> bool:
        """Return whether a trial has ended."""
        return self._state(job) in ENDS

    def has_failed(self, job: Job) -> bool:
        """Return whether a trial has failed or diverged."""
        return self._state(job) in ("diverged", "failed")

    def _state(self, job: Job) -> str | None:
        """Return the state of a trial; None if it has not begun."""
        file = self.run_folder(job) / "trial.json"
        return read_json(file)["state"] if file.is_file() else None


@dataclass(frozen=True)
class TrialFolder:
    """The run folder of a trial, whose trial.json has what a trial has besides.

    Attributes:
        study: Study folder.
        method: Name of the method.
        index: Number of the trial, from 0, the trial with the default parameters.

    >>> TrialFolder(Path("study"), "fedavg", 3).name
    'trials/fedavg/003'
    """

    study: Path
    method: str
    index: int

    @property
    def name(self) -> str:
        """Path of the folder within the study folder, for messages too."""
        return f"trials/{self.method}/{self.index:03d}"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.study / self.name

    def read(self) -> Record | None:
        """Return the content of trial.json; None if the trial has not begun.

        Raises:
            DataError: The file is damaged.
        """
        file = self.path / "trial.json"
        return read_json(file) if file.is_file() else None

    def write(self, record: Record) -> None:
        """Write trial.json atomically; the folder is made if necessary."""
        self.path.mkdir(parents=True, exist_ok=True)
        files.write(self.path / "trial.json", (json.dumps(record, indent=1) + "\n").encode())

    def begin(self, given: Mapping[str, Any]) -> Record:
        """Write and return the record of a trial that begins, or goes on, in this process.

        Args:
            given: Entries of the record: `params`, `seed` and `rounds`, and where the trial runs.
        """
        new = {"method": self.method, "index": self.index, **NEW, "started": now()}
        record = new | (self.read() or {}) | dict(given) | BEGUN
        self.write(record)
        return record


def winner(records: Iterable[Record]) -> Trial | None:
    """Return the best finished trial of a method; see `best_trial`."""
    names = [field.name for field in fields(Trial)]
    known: list[Record] = [{name: one.get(name) for name in names} for one in records]
    return best_trial([Trial(**one) for one in known])


def now() -> str:
    """Return the local time in ISO format, to the second, with the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
