"""The study folder: the description of the study, and one folder for each trial."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.wording import in_shell
from flbench.jobs.folder import CampaignFolder

Record = dict[str, Any]  # content of a trial.json


@dataclass(frozen=True)
class TrainingJob:
    """A trial of the search of a study.

    Attributes:
        method: Name of the method.
        index: Number of the trial.
        seed: Seed of the training.
        params: Parameters by dotted key, which override the method's base configuration.
    """

    method: str
    index: int
    seed: int
    params: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Path of the job's folder within the study folder, which is also its id.

        >>> TrainingJob("fedavg", 3, 0, {}).name
        'trials/fedavg/003'
        """
        return f"trials/{self.method}/{self.index:03d}"

    def record(self, rounds: int) -> Record:
        """Return the content of trial.json for a training that begins now.

        `lost` is true of a training that has failed because its worker did, for the last time: a
        resumed study may train it again.

        Args:
            rounds: Number of rounds of a complete trial.
        """
        return {
            **asdict(self),
            "params": dict(self.params),
            "state": "running",
            "reason": None,
            "round": 0,
            "rounds": rounds,
            "score": None,
            "loss": None,
            "lost": False,
            "seconds": {},
            "started": now(),
            "ended": None,
            "attempts": 1,
            "node": None,
            "pid": None,
        }


def job_from_record(record: Record) -> TrainingJob:
    """Return the job of a trial.json.

    Raises:
        KeyError: The record lacks a field of the job.
    """
    return TrainingJob(**{key: record[key] for key in TrainingJob.__dataclass_fields__})


class StudyFolder(CampaignFolder):
    """The folder of a study."""

    marker = "study.json"
    option = "out"
    inside = "methods"
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
        return read_json(self.path / "study.json")

    def records(self) -> Iterator[Record]:
        """Yield the content of the trial.json of each training that has begun, sorted by folder.

        Raises:
            DataError: A file is damaged.
        """
        for file in sorted(self.path.glob("trials/*/*/trial.json")):
            yield read_json(file)


def read_record(study: Path, job: TrainingJob) -> Record | None:
    """Return the content of a job's trial.json; None if the job has not begun.

    Raises:
        DataError: The file is damaged.
    """
    file = study / job.name / "trial.json"
    return read_json(file) if file.is_file() else None


def write_record(study: Path, job: TrainingJob, record: Record) -> None:
    """Write a job's trial.json atomically; its folder is created if necessary."""
    folder = study / job.name
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / "trial.json", (json.dumps(record, indent=1) + "\n").encode())


def now() -> str:
    """Return the local time in ISO format, to the second, with the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def save_job(study: Path, trial_id: str, job: TrainingJob) -> None:
    """Write the job of one of Ray Tune's trials to a file, for `load_job`."""
    (study / "ray").mkdir(exist_ok=True)
    files.write(study / "ray" / f"{trial_id}.json", json.dumps(asdict(job)).encode())


def load_job(study: Path, trial_id: str, params: Mapping[str, Any]) -> TrainingJob:
    """Return the job of one of Ray Tune's trials, with its present parameters.

    Args:
        study: Study folder.
        trial_id: Ray Tune's id of the trial.
        params: Parameters that the trial has now; population based training changes them.
    """
    job = job_from_record(read_json(study / "ray" / f"{trial_id}.json"))
    return replace(job, params=dict(params))
