"""Sending one run folder to MLflow."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from flbench.core.documents import as_data_error, read_json, read_yaml
from flbench.core.errors import DataError
from flbench.core.files import is_locked
from flbench.core.text import printable
from flbench.tracking import (
    mlflow_errors,
    mlflow_files,
    mlflow_metrics,
    mlflow_models,
    mlflow_names,
)
from flbench.tracking.mirror import Outcome
from flbench.tracking.mlflow_run import RUN_TAG, MlflowRun, RunIdentity, SentCounts
from flbench.tracking.mlflow_store import Store
from flbench.tracking.mlflow_uploads import NotStoredError, Uploads

MLFLOW_STATUS: Final = {"failed": "FAILED", "killed": "KILLED", "unknown": "KILLED"}


@dataclass(frozen=True)
class RunDescription:
    """What MLflow needs to know of a run folder before any metrics.

    Attributes:
        config: Content of config.yaml.
        experiment: Name of the experiment in MLflow.
        tags: Tags by which users filter runs.
        started: Start time in ms since 1970.
    """

    config: Mapping[str, Any]
    experiment: str
    tags: Mapping[str, str | None]
    started: int


def describe(folder: Path) -> RunDescription:
    """Read the description of a run folder.

    Raises:
        DataError: A file of the folder is damaged, or config.yaml is missing.
    """
    config = read_yaml(folder / "config.yaml", required=True)
    provenance = read_json(folder / "provenance.json")
    partition, revision = read_json(folder / "partition.json"), provenance.get("git_revision")
    with as_data_error(folder / "config.yaml"):
        tags = {
            "algorithm": config["algorithm"]["name"],
            "dataset": config["data"]["name"],
            "model": config["model"]["name"],
            "seed": str(config["seed"]),
            "partition": partition.get("hash"),
            "git_revision": revision,
            "mlflow.source.git.commit": revision,
        }
        default = f"{config['data']['name']}-{config['partition']['scheme']}"
        experiment = str((config.get("tracking") or {}).get("experiment") or default)
        if module := provenance.get("module"):  # it makes its own optimizer
            train = {key: value for key, value in config["train"].items() if key != "optimizer"}
            config = {**config, "train": train, "module": module}
    with as_data_error(folder / "provenance.json"):
        return RunDescription(config, experiment, tags, _start_time(folder, provenance))


def _start_time(folder: Path, provenance: Mapping[str, Any]) -> int:
    """Return when a run began, in ms since 1970.

    A run folder without this entry in provenance.json has the time in its name.
    """
    if "started" in provenance:
        return unix_milliseconds(provenance["started"])
    if match := re.search(r"-(\d{8}-\d{6})-", folder.name):
        return int(datetime.strptime(match[1], "%Y%m%d-%H%M%S").timestamp() * 1000)
    return int((folder / "config.yaml").stat().st_mtime * 1000)


def unix_milliseconds(time: str) -> int:
    """Return a time in ISO 8601 format as milliseconds since 1970-01-01 UTC."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


class KeptErrors:
    """Errors about parts of a folder, kept until everything else is sent.

    Args:
        folder: The folder.

    Attributes:
        errors: The errors.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.errors: list[DataError] = []

    @contextmanager
    def keep(self, part: Path | None = None) -> Iterator[None]:
        """Keep the error of a part inside the context, which ends there.

        It is a damaged file, or something that MLflow does not take at any time. If MLflow is not
        reached, the exception is not kept.

        Args:
            part: What is sent; None for the whole folder.
        """
        try:
            yield
        except DataError as error:
            self.errors.append(error)
        except mlflow_errors.connection_errors() as error:
            trouble = mlflow_errors.explain(error)
            if not trouble.is_reached or trouble.is_passing:
                raise
            self.errors.append(DataError(f"{part or self._folder}: {trouble.reason}."))

    def send_and_raise(self, uploads: Uploads, shown: str, *, is_last: bool) -> None:
        """Send the files that wait, and raise what was kept.

        Args:
            uploads: The files.
            shown: Address of the store without its secrets.
            is_last: See `Uploads.send`.

        Raises:
            DataError: Parts of the folder were not sent; the message also names files that were not
                stored.
            NotStoredError: Files were not stored.
        """
        lines = list(dict.fromkeys(map(str, self.errors)))
        try:
            uploads.send(shown, is_last=is_last)
        except NotStoredError as error:
            if not lines:
                raise
            lines.append(str(error))
        if lines:
            raise DataError("\n".join(lines))


class RunMirror:
    """Sends a run folder to MLflow, as far as it is written.

    Args:
        store: An open store.
        folder: The run folder.
        experiment: Name of the experiment; None for the one that the configuration names.
    """

    def __init__(self, store: Store, folder: Path, experiment: str | None = None) -> None:
        self.sent, self._uploads = SentCounts(), Uploads()
        self._folder, self._shown = folder, store.shown
        self._description = describe(folder)
        experiment_id = store.experiment(experiment or self._description.experiment)
        key = mlflow_names.identifier(folder.name)
        existing = next(store.runs(experiment_id, RUN_TAG, key), None)
        # MLflow's pages show the date beside the name.
        name = printable(re.sub(r"-\d{8}-\d{6}-", "-", folder.name))
        identity = RunIdentity(key, name, self._description.started)
        self._run = MlflowRun(store, experiment_id, identity, existing, self.sent, self._uploads)

    def send(self, outcome: Outcome | None) -> None:
        """Send what MLflow does not have yet. The attribute `sent` counts it.

        Args:
            outcome: How the process that writes the folder ended; None while it runs.

        Raises:
            DataError: Parts of the folder were not sent. Everything else was sent before.
            NotStoredError: Files were not stored. Everything else was sent before.
        """
        run, folder, kept = self._run, self._folder, KeptErrors(self._folder)
        best = self._description.config.get("evaluation", {}).get("best") or {}
        objective = f"validation/{best.get('metric') or 'accuracy'}"
        run.set_tags({**self._description.tags, "kind": "run", "objective": objective})
        with kept.keep():
            run.log_parameters(mlflow_names.parameters(self._description.config))
        status = self._status(outcome)
        if status == "RUNNING":
            run.set_status(status)
        send_folder(run, folder, kept, is_over=outcome is not None or status == "FINISHED")
        if status != "RUNNING":
            ended = None
            with kept.keep():
                ended = end_time(folder, run.start)
            run.set_status(status, ended)
        run.set_tags({"state": status.lower()})
        kept.send_and_raise(self._uploads, self._shown, is_last=outcome is not None)

    @property
    def finished(self) -> bool:
        """Whether the run is finished, and MLflow has all of it."""
        return (self._folder / "summary.json").is_file() and self._run.status == "FINISHED"

    def _status(self, outcome: Outcome | None) -> str:
        """Return the status of the run in MLflow."""
        if (self._folder / "summary.json").is_file():
            return "FINISHED"
        if outcome is None or (outcome == "unknown" and is_locked(self._folder)):
            return "RUNNING"
        if outcome == "unknown" and self._run.status == "FAILED":
            return "FAILED"  # set when the process ended, which knew its outcome
        return MLFLOW_STATUS.get(outcome, "KILLED")


def send_folder(run: MlflowRun, folder: Path, kept: KeptErrors, *, is_over: bool) -> None:
    """Send the metrics of a run folder, and the models of a finished run; its files are sent later.

    Args:
        run: Run in MLflow.
        folder: The run folder.
        kept: Gets an error for each part of the folder that is not sent.
        is_over: Whether the run is over. Tables, checkpoints and models are sent only then, because
            they change after each evaluation.
    """
    with kept.keep(folder):
        mlflow_files.send_data_set(run, folder)
    with kept.keep(folder):
        mlflow_metrics.send(run, folder / "metrics.csv", is_over=is_over)
    with kept.keep(folder):
        metrics = summary_metrics(folder)
        run.log_metrics(metrics)
        if metrics and is_over:
            mlflow_models.send(run, folder, metrics)
    mlflow_files.send(run, folder)
    with kept.keep(folder):
        mlflow_files.send_partition(run, folder)
    if is_over:
        with kept.keep(folder):
            mlflow_files.send_tables(run, folder)
        mlflow_files.send_checkpoints(run, folder)


def summary_metrics(folder: Path) -> dict[str, float]:
    """Return the metrics of a folder's summary.json by their names in MLflow; {} without one.

    Raises:
        DataError: summary.json is damaged.
    """
    file = folder / "summary.json"
    summary = read_json(file)
    if not summary:
        return {}
    with as_data_error(file):
        return mlflow_names.summary_metrics(summary)


def end_time(folder: Path, started: int) -> int:
    """Return when a run ended, in ms since 1970.

    For a finished run, interruptions are left out, so that the duration in MLflow is the time that
    the run took.

    Args:
        folder: The run folder.
        started: Start time in ms since 1970.

    Raises:
        DataError: summary.json is damaged.
    """
    if summary := read_json(folder / "summary.json"):
        with as_data_error(folder / "summary.json"):
            return started + int(1000 * summary["seconds"]["total"])
    there = [file for name in ("metrics.csv", "config.yaml") if (file := folder / name).is_file()]
    return int(there[0].stat().st_mtime * 1000)
