"""One run folder to MLflow."""

import fcntl
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from flbench.core.documents import as_data_error, read_json, read_yaml, unix_milliseconds
from flbench.tracking import mlflow_figures, mlflow_files, mlflow_names
from flbench.tracking.mlflow_entry import KEY, Entry, Place, Sent
from flbench.tracking.mlflow_store import Store

Ending = Literal["finished", "failed", "killed", "unknown"]
"""How the process that writes a folder ended; unknown to one that only finds the folder."""
STATUS: Final = {"failed": "FAILED", "killed": "KILLED", "unknown": "KILLED"}


@dataclass(frozen=True)
class Facts:
    """What a run folder says of its run.

    Attributes:
        config: the configuration.
        experiment: that the run belongs to.
        tags: what runs are filtered by.
        started: ms since 1970.
    """

    config: Mapping[str, Any]
    experiment: str
    tags: Mapping[str, str | None]
    started: int


def read(path: Path) -> Facts:
    """Read what a run folder says of its run.

    Raises: DataError if a file is damaged.
    """
    config, provenance = read_yaml(path / "config.yaml"), read_json(path / "provenance.json")
    partition, revision = read_json(path / "partition.json"), provenance.get("git_revision")
    with as_data_error(path / "config.yaml"):
        tags = {
            "algorithm": config["algorithm"]["name"],
            "dataset": config["data"]["name"],
            "model": config["model"]["name"],
            "seed": str(config["seed"]),
            "partition": partition.get("hash"),
            "git_revision": revision,
            "mlflow.source.git.commit": revision,
        }
        experiment = f"{config['data']['name']}-{config['partition']['scheme']}"
        experiment = str((config.get("tracking") or {}).get("experiment") or experiment)
    with as_data_error(path / "provenance.json"):
        return Facts(config, experiment, tags, _start(path, provenance))


def _start(path: Path, provenance: Mapping[str, Any]) -> int:
    """Return when a run began, in ms since 1970."""
    if "started" in provenance:
        return unix_milliseconds(provenance["started"])
    if found := re.search(r"-(\d{8}-\d{6})-", path.name):
        return int(datetime.strptime(found[1], "%Y%m%d-%H%M%S").timestamp() * 1000)
    return int((path / "config.yaml").stat().st_mtime * 1000)


class RunMirror:
    """Sends a run folder to MLflow, as far as it is written.

    Args:
        store: open.
        path: the folder.
        experiment: another one than the folder says.
    """

    def __init__(self, store: Store, path: Path, experiment: str | None = None) -> None:
        self.sent = Sent()
        self._path = path
        facts = read(path)
        self._facts = facts
        name = store.experiment(experiment or facts.experiment)
        found = next(store.runs(name, KEY, path.name), None)
        short = re.sub(r"-\d{8}-\d{6}-", "-", path.name)  # MLflow shows the date by itself
        place = Place(path.name, short, facts.started)
        self._entry = Entry(store, name, place, found, self.sent)

    def send(self, ending: Ending | None) -> None:
        """Send what is new; `sent` counts it.

        Args:
            ending: of the process that writes the folder; None while it goes on.
        """
        entry, path = self._entry, self._path
        entry.mark({**self._facts.tags, "kind": "run", "objective": "validation/accuracy"})
        entry.know(mlflow_names.parameters(self._facts.config))
        status = self._status(ending)
        if status == "RUNNING":
            entry.end(status)
        send_folder(entry, path, over=ending is not None or status == "FINISHED")
        if status != "RUNNING":
            entry.end(status, ended(path, entry.start))
        entry.mark({"state": status.lower()})

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to come."""
        return (self._path / "summary.json").is_file() and self._entry.status == "FINISHED"

    def _status(self, ending: Ending | None) -> str:
        if (self._path / "summary.json").is_file():
            return "FINISHED"
        if ending is None or (ending == "unknown" and is_held(self._path)):
            return "RUNNING"
        if ending == "unknown" and self._entry.status == "FAILED":
            return "FAILED"  # as the process itself said
        return STATUS.get(ending, "KILLED")


def send_folder(entry: Entry, path: Path, *, over: bool) -> None:
    """Send the figures and files of a folder; those that change all the time when it is over."""
    mlflow_files.send_data(entry, path)
    mlflow_figures.send(entry, path / "metrics.csv", over=over)
    mlflow_files.send(entry, path)
    mlflow_files.send_partition(entry, path)
    if over:
        mlflow_files.send_tables(entry, path)
        mlflow_files.send_checkpoints(entry, path)
    entry.conclude(summary_of(path))


def summary_of(path: Path) -> dict[str, float]:
    """Return the figures of a folder's summary.json by their names in MLflow; {} without one.

    Raises: DataError if it is damaged.
    """
    file = path / "summary.json"
    found = read_json(file)
    with as_data_error(file):
        return mlflow_names.summary(found) if found else {}


def ended(path: Path, started: int) -> int:
    """Return when a run ended, in ms since 1970.

    Of a finished one: as if it had never been interrupted, so that MLflow's duration is its time.
    """
    if summary := read_json(path / "summary.json"):
        with as_data_error(path / "summary.json"):
            return started + int(1000 * summary["seconds"]["total"])
    return int((path / "metrics.csv").stat().st_mtime * 1000)


def is_held(path: Path) -> bool:
    """Return whether a process writes to a folder."""
    try:
        with (path / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
