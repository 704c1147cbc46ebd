"""One run in MLflow. Only what MLflow does not have yet is sent."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from flbench.core import files
from flbench.tracking import mlflow_names
from flbench.tracking.mlflow_store import Store
from flbench.tracking.mlflow_uploads import Upload, Uploads

RUN_TAG: Final = "flbench.run"
"""Tag with the name of the folder that a run is a copy of; see `mlflow_names.identifier`."""
FILES_TAG: Final = "mlflow.flbench.files"
"""Tag with the digests of the files that were sent. MLflow's pages hide tags named `mlflow.*`."""
MAX_FILE_BYTES: Final = 2 * 2**30
"""Largest size of a file that is sent, in bytes."""
MAX_METRICS_PER_CALL: Final = 1000  # MLflow's limits
MAX_PARAMETERS_PER_CALL: Final = 100
MAX_PARAMETER_LENGTH: Final = 6000  # characters
MAX_TAG_LENGTH: Final = 8000  # characters


@dataclass
class SentCounts:
    """Number of runs and models made, and of parameters, metric values, files and tags sent.

    A change of a run's status counts as a tag.
    """

    runs: int = 0
    models: int = 0
    parameters: int = 0
    metrics: int = 0
    files: int = 0
    tags: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())


class MetricPoint(NamedTuple):
    """A value of a metric.

    Attributes:
        name: Name of the metric in MLflow.
        value: The value.
        step: Position on the axis of steps, for example a round.
        time: Milliseconds after the start of the run.
    """

    name: str
    value: float
    step: int
    time: int


@dataclass(frozen=True)
class RunIdentity:
    """What a run is in MLflow.

    Attributes:
        key: Value of the tag `flbench.run`, which finds the run again when a user renames it.
        name: Name that MLflow's pages show.
        started: Start time in ms since 1970.
        parent: MLflow's id of the run above this one; None for a run at the top.
        tags: Tags that the run has from the beginning.
    """

    key: str
    name: str
    started: int
    parent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class MlflowRun:
    """A run in MLflow, which is made if it does not exist.

    What the run already has is read from MLflow, so nothing is sent twice, whichever process sent
    it first.

    Args:
        store: An open store.
        experiment: MLflow's id of the experiment.
        identity: What the run is.
        existing: MLflow's record of the run; None if there is no such run yet.
        sent: Counts what is sent.
        uploads: Files of the mirror's runs that wait to be sent.

    Attributes:
        experiment: MLflow's id of the experiment.
        id: MLflow's id of the run.
        name: Name that MLflow's pages show of a new run.
        start: Start time in ms since 1970.
        status: RUNNING, FINISHED, FAILED or KILLED.
        tags: Its tags.
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        identity: RunIdentity,
        existing: Any | None,
        sent: SentCounts,
        uploads: Uploads,
    ) -> None:
        self._client, self._sent, self._uploads = store.client, sent, uploads
        record = existing
        if record is None:
            parent = {} if identity.parent is None else {"mlflow.parentRunId": identity.parent}
            tags = {RUN_TAG: identity.key, "mlflow.source.name": "flbench", **parent}
            record = store.client.create_run(
                experiment,
                start_time=identity.started,
                tags={**tags, **identity.tags},
                run_name=identity.name,
            )
            sent.runs += 1
        store.check_artifacts(record.info.artifact_uri)
        store.check_no_links(record.info.artifact_uri)
        self.experiment, self.name = experiment, identity.name
        self.id: str = record.info.run_id
        self.start: int = record.info.start_time
        self.status: str = record.info.status
        self.tags: dict[str, str] = dict(record.data.tags)
        self._parameters: dict[str, str] = dict(record.data.params)
        self._metrics: dict[str, float] = dict(record.data.metrics)
        self.set_tags(identity.tags)

    def set_tags(self, tags: Mapping[str, str | None]) -> None:
        """Set tags. A tag whose value is None is left as it is; a long value is cut."""
        new = {
            name: value[:MAX_TAG_LENGTH]
            for name, value in tags.items()
            if value is not None and self.tags.get(name) != value[:MAX_TAG_LENGTH]
        }
        self._log_batch(tags=new)
        self._sent.tags += len(new)

    def log_parameters(self, parameters: Mapping[str, str]) -> None:
        """Send parameters.

        MLflow does not change a parameter that it has. A later value becomes the tag
        `latest.NAME`. A long value is cut, as MLflow cuts it.
        """
        parameters = {name: value[:MAX_PARAMETER_LENGTH] for name, value in parameters.items()}
        new = {name: value for name, value in parameters.items() if name not in self._parameters}
        items = list(new.items())
        for begin in range(0, len(items), MAX_PARAMETERS_PER_CALL):
            self._log_batch(parameters=dict(items[begin : begin + MAX_PARAMETERS_PER_CALL]))
        self._parameters |= new
        self._sent.parameters += len(new)
        self.set_tags(
            {
                f"latest.{name}": value
                for name, value in parameters.items()
                if self._parameters[name] != value
            }
        )

    def log_points(self, points: Sequence[MetricPoint], tags: Mapping[str, str]) -> None:
        """Send points of curves.

        Args:
            points: The points.
            tags: Tags that record that the points were sent. They are set in the last call.
        """
        for begin in range(0, max(1, len(points)), MAX_METRICS_PER_CALL):
            part = points[begin : begin + MAX_METRICS_PER_CALL]
            is_last = begin + MAX_METRICS_PER_CALL >= len(points)
            self._log_batch(part, tags=tags if is_last else {})
        self._sent.metrics += len(points)

    def log_metrics(self, metrics: Mapping[str, float], time: int = 0) -> None:
        """Send metrics that have one value for the run, which MLflow draws as bars.

        Args:
            metrics: Values by name.
            time: Milliseconds after the start of the run. MLflow shows the value with the latest
                time.
        """
        values = {name: mlflow_names.rounded(value) for name, value in metrics.items()}
        new = {name: value for name, value in values.items() if self._metrics.get(name) != value}
        if new:
            self.log_points([MetricPoint(name, value, 0, time) for name, value in new.items()], {})
            self._metrics |= new

    def log_model(self, model: str, points: Sequence[MetricPoint], step: int) -> None:
        """Send the metrics of a model of this run, and record the model as an output of the run.

        Args:
            model: MLflow's id of the model.
            points: The metrics. The run gets them too, if its curves do not have them.
            step: Round of the model.
        """
        from mlflow.entities import LoggedModelOutput

        for begin in range(0, len(points), MAX_METRICS_PER_CALL):
            self._log_batch(points[begin : begin + MAX_METRICS_PER_CALL], model=model)
        outputs = self._client.get_run(self.id).outputs
        if model not in [output.model_id for output in outputs.model_outputs or ()]:
            self._client.log_outputs(self.id, [LoggedModelOutput(model, step)])
        self._client.finalize_logged_model(model, "READY")
        self._sent.models += 1
        self._sent.metrics += len(points)

    def upload_file(self, path: Path, folder: str | None = None) -> None:
        """Send a file as `upload_files` does."""
        self.upload_files([path], folder)

    def upload_files(self, paths: Iterable[Path], folder: str | None = None) -> None:
        """Send files, but for those that MLflow has with the same content.

        They are sent by `Uploads.send`, after everything else. A file above `MAX_FILE_BYTES` is not
        sent; the tag `file.NAME` says so.

        Args:
            paths: The files.
            folder: Folder among the run's artifacts; None for the top.

        Raises:
            UserError: A file is a link.
        """
        paths = list(paths)
        for path in paths:
            files.check_no_link(path)
        there = self.uploaded_files
        for path in paths:
            name = path.name if folder is None else f"{folder}/{path.name}"
            if (size := path.stat().st_size) > MAX_FILE_BYTES:
                reason = f"not sent: {size:,} bytes (more than {MAX_FILE_BYTES:,})"
                self.set_tags({f"file.{path.name}": reason})
                continue
            digest = digest_of(path)
            if there.get(name) != digest:
                self._uploads.add(Upload(self, path.name, folder, path, digest))

    def upload_text(self, name: str, content: str) -> None:
        """Send a text as the file `name`, unless MLflow has it with the same content."""
        encoded = content.encode()
        self.upload_bytes(name, encoded, sha256(encoded).hexdigest()[:12])

    def upload_bytes(self, name: str, content: bytes, digest: str) -> None:
        """Send bytes as the file `name`, unless MLflow has it with the same digest."""
        if self.uploaded_files.get(name) != digest:
            self._uploads.add(Upload(self, name, None, content, digest))

    def record_uploads(self, digests: Mapping[str, str]) -> None:
        """Record in the run's tags that MLflow has files with these digests, by their names."""
        tags: dict[str, dict[str, str]] = {}
        for name, digest in digests.items():
            # A tag has at most 8000 characters, so the files of folders are spread over 16 tags.
            shard = f".{sha256(name.encode()).hexdigest()[0]}" if "/" in name else ""
            tag = FILES_TAG + shard
            if tag not in tags:
                tags[tag] = json.loads(self.tags.get(tag, "{}"))
            tags[tag][name] = digest
        self._log_batch(tags={tag: json.dumps(files) for tag, files in tags.items()})
        self._sent.files += len(digests)

    @property
    def uploaded_files(self) -> dict[str, str]:
        """Files that MLflow has: first 12 digits of their SHA-256 by name."""
        files: dict[str, str] = {}
        for tag in sorted(tag for tag in self.tags if tag.startswith(FILES_TAG)):
            files |= json.loads(self.tags[tag])
        return files

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters that MLflow has of the run."""
        return dict(self._parameters)

    @property
    def client(self) -> Any:
        """The `mlflow.MlflowClient` of the store that contains the run."""
        return self._client

    def set_status(self, status: str, ended: int | None = None) -> None:
        """Set the status of the run.

        Args:
            status: RUNNING, FINISHED, FAILED or KILLED.
            ended: End time in ms since 1970; None for now. RUNNING has no end time.
        """
        if status == self.status:
            return
        if status == "RUNNING":
            self._client.update_run(self.id, status=status)
        else:
            self._client.set_terminated(self.id, status, ended)
        self.status = status
        self._sent.tags += 1

    def _log_batch(
        self,
        points: Sequence[MetricPoint] = (),
        parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        model: str | None = None,
    ) -> None:
        """Send metric points, of the run or of one of its models, parameters and tags at once."""
        from mlflow.entities import Metric, Param, RunTag

        tags, parameters = tags or {}, parameters or {}
        if not (points or parameters or tags):
            return
        metrics = [
            Metric(p.name, mlflow_names.rounded(p.value), self.start + p.time, p.step, model)
            for p in points
        ]
        self._client.log_batch(
            self.id,
            metrics=metrics,
            params=[Param(name, value) for name, value in parameters.items()],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        self.tags |= tags


def digest_of(path: Path) -> str:
    """Return the first 12 digits of a file's SHA-256."""
    stat = path.stat()
    return _digest(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, modified: int, size: int) -> str:
    """Return the digest of a file; time and size tell the versions of a file apart."""
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()[:12]
