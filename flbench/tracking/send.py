"""Sending the nodes of a folder to MLflow: only what it does not have yet, and files last.

A run in MLflow is found by its tag `flbench.run`. Another tag says how many points of curves it
has, and one which files. A file store may refuse a file, or be away, while MLflow itself answers:
therefore files wait until everything else is sent, and one that is not stored keeps no other back.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final

from flbench.core import files
from flbench.core.errors import DataError, UserError, shortened
from flbench.core.text import one_line
from flbench.tracking import errors, store
from flbench.tracking.artifacts import File
from flbench.tracking.errors import Trouble
from flbench.tracking.measures import Point, rounded
from flbench.tracking.mirror import Outcome
from flbench.tracking.store import Store
from flbench.tracking.tree import ENDED, Node, tree

RUN_TAG: Final = "flbench.run"
"""Tag with the name of the folder that a run is a copy of; see `tree.identifier`."""
SENT_TAG: Final = "mlflow.flbench.sent"
"""Tag with the number of points of curves that were sent, and their hash. MLflow's pages hide tags
named `mlflow.*`."""
FILES_TAG: Final = "mlflow.flbench.files"
"""Tag with the hashes of the files that were sent."""
MAX_PARAMETER: Final = 6000
MAX_TAG: Final = 8000
"""Characters of a parameter and a tag."""
MAX_AWAY: Final = 2
"""Files in sequence for which the store is away or busy, after which the others are not tried: a
server may take seconds for each."""
SMALL_FILE: Final = 1_000_000  # bytes
UPLOAD_SECONDS: Final = "60"  # for an answer to a larger file
LONGEST_NAMES: Final = 160  # characters of names of files in a message


@dataclass
class SentCounts:
    """Number of runs made, and of parameters, metric values, files and tags sent.

    A change of a run's status counts as a tag.
    """

    runs: int = 0
    parameters: int = 0
    metrics: int = 0
    files: int = 0
    tags: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())


class NotSentError(UserError):
    """Something was not sent. The message says what, why, and what the user can do.

    Attributes:
        kind: See `Trouble`.
        is_of_files: Whether only files are missing: everything else was sent.
    """

    def __init__(self, message: str, kind: str, *, is_of_files: bool = False) -> None:
        super().__init__(message)
        self.kind, self.is_of_files = kind, is_of_files


class _Run:
    """What MLflow has of a node, by its record; `node` is that which was sent completely."""

    def __init__(self, record: Any) -> None:
        self.id, self.start = record.info.run_id, record.info.start_time
        self.status = record.info.status
        self.tags: dict[str, str] = dict(record.data.tags)
        self.params: dict[str, str] = dict(record.data.params)
        self.metrics: dict[str, float] = dict(record.data.metrics)
        self.node: Node | None = None


class Sender:
    """Sends the folder of a run, a comparison or a study.

    Args:
        to: An open store.
        folder: The folder.
        experiment: Name of the experiment; None for the one that the configuration names.

    Attributes:
        sent: Numbers of what was sent.
        is_finished: Whether MLflow has all of a finished run. It is never known of a campaign.
    """

    def __init__(self, to: Store, folder: Path, experiment: str | None = None) -> None:
        self.sent, self.is_finished = SentCounts(), False
        self._store, self._client, self._folder = to, to.client, folder
        self._name, self._experiment = experiment, ""
        self._runs: dict[str, _Run] = {}

    def send(self, outcome: Outcome | None) -> None:
        """Send what MLflow does not have yet.

        Args:
            outcome: How the process that writes the folder ended; None while it runs.

        Raises:
            DataError: Parts of the folder are damaged, or MLflow refuses them. Everything else was
                sent before.
            NotSentError: Files were not stored. Everything else was sent before.
            Exception: The store cannot be used: one of `errors.connection_errors`.
        """
        nodes, damaged, experiment = tree(self._folder, outcome)
        if not self._experiment:
            self._open(self._name or experiment, nodes[0].key)
        lines = dict.fromkeys(map(str, damaged))
        sent = {key: run.node for key, run in self._runs.items()}
        left = [node for node in nodes if node != sent.get(node.key)]
        for node in left:
            with self._keeping(node, lines):
                self._send(node, lines)
        not_stored = self._send_files([node for node in left if node.key in self._runs])
        self.is_finished = nodes[0].kind == "run" and nodes[0].status == "FINISHED"
        if lines:
            more = [] if not_stored is None else [str(not_stored)]
            raise DataError("\n".join([*lines, *more]))
        if not_stored is not None:
            raise not_stored
        for node in left:
            self._runs[node.key].node = node

    def _open(self, experiment: str, key: str) -> None:
        """Read which runs of the folder MLflow has."""
        number = self._store.experiment(experiment)
        for query in (f"= '{key}'", f"LIKE '{key}/%'"):
            for record in self._store.runs(number, f"tags.`{RUN_TAG}` {query}"):
                self._add(record)
        self._experiment = number

    def _add(self, record: Any) -> _Run:
        """Add MLflow's record of a run, after a check of where its files are."""
        self._store.address.check_artifacts(record.info.artifact_uri)
        return self._runs.setdefault(record.data.tags[RUN_TAG], _Run(record))

    @contextmanager
    def _keeping(self, node: Node, lines: dict[str, None]) -> Iterator[None]:
        """Keep the error of something that MLflow does not take at any time."""
        try:
            yield
        except errors.connection_errors() as error:
            trouble = errors.explain(error)
            if trouble.kind != "refused":
                raise
            line = f"{self._folder}: MLflow refuses a part of {node.name} ({trouble.reason})."
            lines[line] = None

    def _send(self, node: Node, lines: dict[str, None]) -> None:
        """Send everything but the files of a node."""
        run = self._runs.get(node.key) or self._make(node)
        if node.status == "RUNNING":
            self._set_status(run, node)
        for send in (self._send_params, self._send_metrics):
            with self._keeping(node, lines):
                send(run, node)
        self._set_tags(run, {"kind": node.kind, **node.tags})
        self._set_status(run, node)

    def _make(self, node: Node) -> _Run:
        """Make a run."""
        tags = {RUN_TAG: node.key, "kind": node.kind, "mlflow.source.name": "flbench"}
        tags |= {"mlflow.parentRunId": self._runs[node.parent].id} if node.parent else {}
        record = self._client.create_run(
            self._experiment, start_time=node.started, tags=tags, run_name=node.name
        )
        self.sent.runs += 1
        return self._add(record)

    def _send_params(self, run: _Run, node: Node) -> None:
        """Send parameters. MLflow changes none: a later value becomes the tag `latest.NAME`."""
        from mlflow.entities import Param

        params = {name: value[:MAX_PARAMETER] for name, value in node.params.items()}
        new = {name: value for name, value in params.items() if name not in run.params}
        if new:
            self._client.log_batch(run.id, params=[Param(*one) for one in new.items()])
            run.params |= new
            self.sent.parameters += len(new)
        changed = {key: value for key, value in params.items() if run.params[key] != value}
        self._set_tags(run, {f"latest.{key}": value for key, value in changed.items()})

    def _send_metrics(self, run: _Run, node: Node) -> None:
        """Send the points that MLflow does not have.

        If the beginning of a curve has changed, because the run was resumed from an earlier round,
        the whole curve is sent again. The time of a point follows from its step, so a point that
        is sent twice is stored once.
        """
        from mlflow.entities import Metric

        count, digest = run.tags.get(SENT_TAG, "0 ").split(" ")
        begin = int(count) if _digest(node.curves[: int(count)]) == digest else 0
        values = [
            one
            for one in node.points
            if isfinite(one.value) and run.metrics.get(one.name) != rounded(one.value)
        ]
        new = [*node.curves[begin:], *values]
        if not new:
            return
        metrics = [
            Metric(name, rounded(value), run.start + 1000 * step, step) for name, value, step in new
        ]
        self._client.log_batch(run.id, metrics=metrics)
        run.metrics |= {one.name: rounded(one.value) for one in values}
        self.sent.metrics += len(new)
        if node.curves:
            self._set_tags(run, {SENT_TAG: f"{len(node.curves)} {_digest(node.curves)}"})

    def _set_tags(self, run: _Run, tags: dict[str, str]) -> None:
        """Set tags. A long value is cut."""
        from mlflow.entities import RunTag

        cut = {name: value[:MAX_TAG] for name, value in tags.items()}
        new = {name: value for name, value in cut.items() if run.tags.get(name) != value}
        if new:
            self._client.log_batch(run.id, tags=[RunTag(*one) for one in new.items()])
            run.tags |= new
            self.sent.tags += len(new)

    def _set_status(self, run: _Run, node: Node) -> None:
        """Set the status of a run."""
        status = node.status
        if status == ENDED:  # a process that knew how it ended has said so before
            status = run.status if run.status in ("FAILED", "KILLED") else "KILLED"
        if status == run.status:
            return
        if status == "RUNNING":
            self._client.update_run(run.id, status=status)
        else:
            self._client.set_terminated(run.id, status, node.ended)
        run.status = status
        self.sent.tags += 1

    def _send_files(self, nodes: Sequence[Node]) -> NotSentError | None:
        """Send files, and return the error that names those that were not stored."""
        failed: dict[Trouble, list[str]] = {}
        away: list[Trouble] = []  # of the last files, in sequence
        for node in nodes:
            run = self._runs[node.key]
            stored = {file.digest for file in node.files} & {*run.tags.get(FILES_TAG, "").split()}
            try:
                for file in (one for one in node.files if one.digest not in stored):
                    trouble = away[-1] if len(away) >= MAX_AWAY else self._try(run, file)
                    if trouble is None:
                        stored.add(file.digest)
                        self.sent.files += 1
                    else:
                        failed.setdefault(trouble, []).append(f"{node.name}: {file.name}")
                    away = [*away, trouble] if trouble and trouble.kind != "refused" else []
            finally:
                known = " ".join(file.digest for file in node.files if file.digest in stored)
                if known:
                    counted = self.sent.tags  # the files are counted, not the tag about them
                    self._set_tags(run, {FILES_TAG: known})
                    self.sent.tags = counted
        if not failed:
            return None
        said = [
            f"MLflow at {self._store.address.shown} did not store {len(names):,} files:"
            f" {shortened(one_line(', '.join(names)), LONGEST_NAMES)} ({one.reason}). {one.cure}."
            for one, names in failed.items()
        ]
        is_passing = any(one.kind != "refused" for one in failed)
        kind = "busy" if is_passing else "refused"
        return NotSentError("\n".join(said), kind, is_of_files=True)

    def _try(self, run: _Run, file: File) -> Trouble | None:
        """Send a file, and return why it was not stored; None if it was, or is gone."""
        files.check_no_link(file.path)
        if not file.path.is_file():
            return None
        folder, is_large = file.name.rpartition("/")[0], file.path.stat().st_size > SMALL_FILE
        try:
            with store.settings({store.TIMEOUT_VARIABLE: UPLOAD_SECONDS} if is_large else {}):
                self._client.log_artifact(run.id, str(file.path), folder or None)
        except Exception as error:  # noqa: BLE001  # any client of a file store
            return errors.explain(error)
        return None


def _digest(points: Sequence[Point]) -> str:
    """Return the hash of points, nothing for none."""
    return sha256(repr(list(points)).encode()).hexdigest()[:16] if points else ""
