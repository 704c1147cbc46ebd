"""One run in MLflow, which is told only what it does not know yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from flbench.tracking import mlflow_store
from flbench.tracking.mlflow_store import Store

KEY: Final = "flbench.run"
FILES: Final = "mlflow.flbench.files"  # MLflow's pages hide tags that begin with its own name
MOST_FIGURES: Final = 1000  # of one call, as MLflow allows
MOST_VALUES: Final = 100


@dataclass
class Sent:
    """How much was sent: runs that were made, parameters, figures, files, tags with the status."""

    runs: int = 0
    parameters: int = 0
    figures: int = 0
    files: int = 0
    tags: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())


class Point(NamedTuple):
    """A figure; `time` in ms after the run's start."""

    name: str
    value: float
    step: int
    time: int


@dataclass(frozen=True)
class Place:
    """What a run is in MLflow.

    Attributes:
        key: finds it again, whatever it is called.
        name: as the user sees it.
        started: ms since 1970.
        parent: MLflow's id of the run above it.
        tags: that it has from the beginning.
    """

    key: str
    name: str
    started: int
    parent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Entry:
    """A run in MLflow.

    What it has is what the store says it has, so nothing is sent twice, by whichever process.

    Args:
        store: open.
        experiment: its id.
        place: what the run is.
        found: the run, if it is there; it is made otherwise.
        sent: counts what is sent.
    """

    def __init__(
        self, store: Store, experiment: str, place: Place, found: Any | None, sent: Sent
    ) -> None:
        self._client, self._sent = store.client, sent
        if found is None:
            parent = {} if place.parent is None else {"mlflow.parentRunId": place.parent}
            tags = {KEY: place.key, "mlflow.source.name": "flbench", **parent, **place.tags}
            found = store.client.create_run(
                experiment, start_time=place.started, tags=tags, run_name=place.name
            )
            sent.runs += 1
        self.id: str = found.info.run_id
        self.start: int = found.info.start_time
        self.status: str = found.info.status
        self.tags: dict[str, str] = dict(found.data.tags)
        self._parameters: dict[str, str] = dict(found.data.params)
        self._figures: dict[str, float] = dict(found.data.metrics)
        self.mark(place.tags)

    def mark(self, tags: Mapping[str, str | None]) -> None:
        """Set tags; None is left out."""
        new = {
            name: value
            for name, value in tags.items()
            if value is not None and self.tags.get(name) != value
        }
        self._batch(tags=new)
        self._sent.tags += len(new)

    def know(self, parameters: Mapping[str, str]) -> None:
        """Send parameters. MLflow keeps a first value for ever: a later one becomes a tag."""
        new = {name: value for name, value in parameters.items() if name not in self._parameters}
        items = list(new.items())
        for begin in range(0, len(items), MOST_VALUES):
            self._batch(parameters=dict(items[begin : begin + MOST_VALUES]))
        self._parameters |= new
        self._sent.parameters += len(new)
        self.mark(
            {
                f"latest.{name}": value
                for name, value in parameters.items()
                if self._parameters[name] != value
            }
        )

    def draw(self, points: Sequence[Point], tags: Mapping[str, str]) -> None:
        """Send figures, and tags that say so, in as few calls as MLflow allows."""
        for begin in range(0, max(1, len(points)), MOST_FIGURES):
            part = points[begin : begin + MOST_FIGURES]
            self._batch(part, tags=tags if begin + MOST_FIGURES >= len(points) else {})
        self._sent.figures += len(points)

    def conclude(self, figures: Mapping[str, float], time: int = 0) -> None:
        """Send figures without steps, of which MLflow draws bars.

        Args:
            figures: by name.
            time: the latest one counts, where a figure changes.
        """
        new = {name: value for name, value in figures.items() if self._figures.get(name) != value}
        if new:
            self.draw([Point(name, value, 0, time) for name, value in new.items()], {})
            self._figures |= new

    def file(self, path: Path, folder: str | None = None) -> None:
        """Send a file if the store does not have it as it is."""
        name = path.name if folder is None else f"{folder}/{path.name}"
        digest = digest_of(path)
        if self.files.get(name) == digest:
            return
        with mlflow_store.patience():
            self._client.log_artifact(self.id, str(path), folder)
        self.has(name, digest)

    def text(self, name: str, content: str) -> None:
        """Send a text as a file."""
        digest = sha256(content.encode()).hexdigest()[:12]
        if self.files.get(name) != digest:
            self._client.log_text(self.id, content, name)
            self.has(name, digest)

    def has(self, name: str, digest: str) -> None:
        """Remember that the store has a file."""
        self._batch(tags={FILES: json.dumps(self.files | {name: digest})})
        self._sent.files += 1

    @property
    def files(self) -> dict[str, str]:
        """The files that the store has, and the begin of their SHA-256."""
        found: dict[str, str] = json.loads(self.tags.get(FILES, "{}"))
        return found

    @property
    def client(self) -> Any:
        """MLflow's client."""
        return self._client

    def end(self, status: str, ended: int | None = None) -> None:
        """Set the status: RUNNING, FINISHED, FAILED or KILLED; `ended` in ms since 1970."""
        if status == self.status:
            return
        if status == "RUNNING":
            self._client.update_run(self.id, status=status)
        else:
            self._client.set_terminated(self.id, status, ended)
        self.status = status
        self._sent.tags += 1

    def _batch(
        self,
        points: Sequence[Point] = (),
        parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        tags, parameters = tags or {}, parameters or {}
        if not (points or parameters or tags):
            return
        self._client.log_batch(
            self.id,
            metrics=[Metric(p.name, p.value, self.start + p.time, p.step) for p in points],
            params=[Param(name, value) for name, value in parameters.items()],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        self.tags |= tags


def digest_of(path: Path) -> str:
    """Return the begin of a file's SHA-256."""
    about = path.stat()
    return _digest(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, changed: int, size: int) -> str:
    found = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()[:12]
