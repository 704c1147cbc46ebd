"""The study folder: what was asked, and one folder for every trial."""

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.errors import UserError

Kind = Literal["search", "final"]
Variant = Literal["default", "tuned"]
Record = dict[str, Any]  # trial.json
FOLDERS: Final = {"search": "trials", "final": "finals"}


@dataclass(frozen=True)
class Job:
    """A training that a study asks for.

    Attributes:
        method: name of the method.
        kind: search (evaluated on validation parts) or final (evaluated on test parts).
        index: of the trial; of a final, that of the trial whose parameters it has.
        seed: of the training; the partition's is the study's.
        params: values by their dotted keys, over the method's base configuration.
        variant: of a final: the default or the tuned parameters.
    """

    method: str
    kind: Kind
    index: int
    seed: int
    params: Mapping[str, Any]
    variant: Variant | None = None

    @property
    def name(self) -> str:
        """The folder within the study."""
        last = f"{self.index:03d}" if self.kind == "search" else f"{self.variant}-seed{self.seed}"
        return f"{FOLDERS[self.kind]}/{self.method}/{last}"

    def record(self, rounds: int) -> Record:
        """Return trial.json of a trial that begins now.

        Args:
            rounds: of a whole trial.
        """
        return {
            **asdict(self),
            "params": dict(self.params),
            "of": self.index if self.kind == "final" else None,
            "state": "running",
            "reason": None,
            "round": 0,
            "rounds": rounds,
            "score": None,
            "seconds": {},
            "started": now(),
            "ended": None,
            "attempts": 1,
            "node": None,
            "pid": None,
        }


def job_of(record: Record) -> Job:
    """Return the job that a trial.json tells of."""
    return Job(**{key: record[key] for key in Job.__dataclass_fields__})


class StudyFolder:
    """A study on the disk.

    Args:
        path: an existing folder; `create` makes a new one, `reopen` takes up an old one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Any = None

    @classmethod
    def create(cls, root: Path, name: str) -> Self:
        """Make a new folder `root/name-DATE-TIME-xxxx/`.

        Raises: UserError if it cannot be written to.
        """
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = (root / f"{name}-{now}-{secrets.token_hex(2)}").absolute()
        try:
            (path / "methods").mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}). Choose another folder with --out"
                " DIR."
            ) from error
        folder = cls(path)
        folder._lock = files.hold(folder.path)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Take up an existing study.

        Raises: UserError if it is none, or another process writes to it.
        """
        if not (path / "study.json").is_file():
            raise UserError(f"{path} is not a study folder: it has no study.json.")
        folder = cls(path.absolute())
        folder._lock = files.hold(folder.path)
        return folder

    def close(self) -> None:
        """Let other processes write to the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the study, whole or not at all."""
        files.write(self.path / name, content.encode() if isinstance(content, str) else content)

    def description(self) -> Record:
        """Return study.json. Raises: DataError if it is damaged."""
        return read_json(self.path / "study.json")

    def records(self) -> Iterator[Record]:
        """Yield the trial.json of every trial that has begun, in order of their folders.

        Raises: DataError if one is damaged.
        """
        for kind in FOLDERS.values():
            for file in sorted(self.path.glob(f"{kind}/*/*/trial.json")):
                yield read_json(file)


def read_record(study: Path, job: Job) -> Record | None:
    """Return a job's trial.json; None before it has begun."""
    file = study / job.name / "trial.json"
    return read_json(file) if file.is_file() else None


def write_record(study: Path, job: Job, record: Record) -> None:
    """Write a job's trial.json, whole or not at all."""
    folder = study / job.name
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / "trial.json", (json.dumps(record, indent=1) + "\n").encode())


def now() -> str:
    """Return the time in ISO format, with seconds."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def name_trial(study: Path, trial_id: str, job: Job) -> None:
    """Remember which job a trial of Ray Tune is."""
    (study / "ray").mkdir(exist_ok=True)
    files.write(study / "ray" / f"{trial_id}.json", json.dumps(asdict(job)).encode())


def named(study: Path, trial_id: str, params: Mapping[str, Any]) -> Job:
    """Return the job of a trial of Ray Tune, with the parameters that it has now."""
    job = job_of(read_json(study / "ray" / f"{trial_id}.json"))
    return replace(job, params=dict(params))
