"""The study folder, and the folders of its trials."""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.wording import in_shell
from flbench.jobs.folder import JobFolder
from flbench.jobs.job import Job
from flbench.results.study_folder import Params, Trial, read_trial

OTHER_METRIC: Final = (
    "Search by another metric (--metric), or with more rounds (--rounds) or validation samples"
    " (partition.split)."
)
"""What helps where a metric tells no two trials apart."""
BEGUN: Final[dict[str, Any]] = {"state": "running", "reason": None, "ended": None, "lost": False}
"""Entries of a trial that begins, or goes on."""


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

    def description(self) -> dict[str, Any]:
        """Return the content of study.json.

        Raises:
            DataError: The file is damaged.
        """
        return read_json(self.path / self.marker)

    def trials(self) -> list[Trial]:
        """Return the trials that have begun, sorted by folder.

        Raises:
            DataError: The trial.json of one is damaged.
        """
        return [read_trial(file) for file in sorted(self.path.glob("trials/*/*/trial.json"))]

    def trial(self, one: Trial) -> "TrialFolder":
        """Return the folder of a trial."""
        return TrialFolder(self.path, one.method, one.index)

    def is_done(self, job: Job) -> bool:
        """Return whether a trial has ended."""
        return self._state(job) not in (None, "running")

    def has_failed(self, job: Job) -> bool:
        """Return whether a trial has failed or diverged."""
        return self._state(job) in ("diverged", "failed")

    def _state(self, job: Job) -> str | None:
        """Return the state of a trial; None if it has not begun."""
        file = self.run_folder(job) / "trial.json"
        return read_trial(file).state if file.is_file() else None


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

    def read(self) -> Trial | None:
        """Return the trial; None if it has not begun.

        Raises:
            DataError: trial.json is damaged.
        """
        file = self.path / "trial.json"
        return read_trial(file) if file.is_file() else None

    def write(self, trial: Trial, **changes: Any) -> Trial:
        """Write trial.json atomically, and return the trial with the changes.

        The folder is made if necessary.
        """
        trial = replace(trial, **changes)
        self.path.mkdir(parents=True, exist_ok=True)
        files.write(self.path / "trial.json", (json.dumps(asdict(trial), indent=1) + "\n").encode())
        return trial

    def begin(self, params: Params, *, seed: int, rounds: int, **where: Any) -> Trial:
        """Write and return a trial that begins, or goes on, on a `node` in the process `pid`."""
        new = Trial(
            *(self.method, self.index, seed, params, "running", None, 0, rounds, None, {}, now()),
            ended=None,
        )
        changes = {"params": params, "seed": seed, "rounds": rounds, **where, **BEGUN}
        return self.write(self.read() or new, **changes)


def now() -> str:
    """Return the local time in ISO format, to the second, with the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
