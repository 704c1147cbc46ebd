"""Sending a folder with many trainings, a study or a comparison, to MLflow as a tree of runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final

from flbench.core.documents import as_data_error
from flbench.core.files import is_locked
from flbench.core.text import printable
from flbench.tracking import mirror_run, mlflow_names, mlflow_view
from flbench.tracking.mirror import Outcome
from flbench.tracking.mirror_run import KeptErrors, unix_milliseconds
from flbench.tracking.mlflow_run import RUN_TAG, MlflowRun, RunIdentity, SentCounts
from flbench.tracking.mlflow_store import Store
from flbench.tracking.mlflow_uploads import Uploads

VIEW_TAG: Final = "mlflow.flbench.view"
"""Tag with the digest of the views that were set."""


class TreeMirror(ABC):
    """Sends a folder with many trainings to MLflow, as far as it is written.

    A subclass reads the folder's own description, and sends the runs below that of the folder.

    Attributes:
        kind: What the folder is: study or comparison.
        tag: Tag with the id of the folder, on all of its runs.
        marker: File with the description of the folder.
        changing: Pattern of the files of a training whose last change is the end of the folder.
        finished: False: only the process that trains knows when everything is finished.
        sent: Numbers of what was sent.

    Args:
        store: An open store.
        folder: The folder.
        name: Id of the folder, as its description has it.
        created: Time at which the folder was made, in ISO format.
        experiment: Name of the experiment.

    Raises:
        DataError: `created` is no time.
    """

    kind: ClassVar[str]
    tag: ClassVar[str]
    marker: ClassVar[str]
    changing: ClassVar[str]
    finished = False

    def __init__(
        self, store: Store, folder: Path, *, name: str, created: str, experiment: str
    ) -> None:
        self.sent, self._uploads = SentCounts(), Uploads()
        self._store, self._folder, self._name = store, folder, name
        with as_data_error(folder / self.marker):
            self._started = unix_milliseconds(created)
        self._id = mlflow_names.identifier(name)
        self._experiment = store.experiment(experiment)
        self._existing = {
            run.data.tags.get(RUN_TAG): run
            for run in store.runs(self._experiment, self.tag, self._id)
        }
        self._runs: dict[str, MlflowRun] = {}
        self._kept = KeptErrors(folder)

    def send(self, outcome: Outcome | None) -> None:
        """Send what MLflow does not have yet. The attribute `sent` counts it.

        Args:
            outcome: How the process that trains ended; None while it runs.

        Raises:
            DataError: Parts of the folder were not sent. Everything else was sent before.
            NotStoredError: Files were not stored. Everything else was sent before.
        """
        self._kept = KeptErrors(self._folder)
        is_live = outcome is None or (outcome == "unknown" and is_locked(self._folder))
        unfinished = "RUNNING" if is_live else mirror_run.MLFLOW_STATUS.get(outcome or "", "KILLED")
        self._send_tree(self._run("", self._name, None, self.kind), unfinished)
        self._kept.send_and_raise(self._uploads, self._store.shown, is_last=outcome is not None)

    @abstractmethod
    def _send_tree(self, root: MlflowRun, unfinished: str) -> None:
        """Send everything below the run of the folder, and that run's own entries.

        Args:
            root: Run of the folder.
            unfinished: MLflow's status of what is not over.
        """

    @abstractmethod
    def _shared_tags(self) -> Mapping[str, str | None]:
        """Return tags of all runs of the folder; those that are None are left out."""

    def _collect_errors(self, part: Path | None = None) -> AbstractContextManager[None]:
        """Keep the error of a part for the end of `send`, so that the rest is sent.

        Args:
            part: What is sent; None for the whole folder.
        """
        return self._kept.keep(part)

    def _run(
        self,
        key: str,
        name: str,
        parent: str | None,
        kind: str,
        tags: Mapping[str, str | None] | None = None,
        started: int | None = None,
    ) -> MlflowRun:
        """Return the run of a part of the folder; it is made if it does not exist.

        Args:
            key: Name of the part, such as `cells/NAME` or `methods/LABEL`; "" for the folder.
            name: Name that MLflow's pages show.
            parent: MLflow's id of the run above.
            kind: What the part is, such as method, cell or trial.
            tags: Tags beside those that all runs of the folder have.
            started: Start time in ms since 1970; None for that of the folder.
        """
        if key not in self._runs:
            tag = f"{self._id}/{mlflow_names.identifier(key)}" if key else self._id
            own = {self.tag: self._id, "kind": kind, **self._shared_tags(), **(tags or {})}
            known = {name: value for name, value in own.items() if value is not None}
            identity = RunIdentity(tag, printable(name), started or self._started, parent, known)
            existing = self._existing.pop(tag, None)
            self._runs[key] = MlflowRun(
                self._store, self._experiment, identity, existing, self.sent, self._uploads
            )
        return self._runs[key]

    def _method_run(
        self, method: str, number: int, key: str, root: MlflowRun
    ) -> tuple[MlflowRun, dict[str, str]]:
        """Return the run of a method, and the tags that it shares with the runs below it.

        Args:
            method: Label of the method.
            number: Its position among the methods of the folder, which gives its colour.
            key: Name of the tag with the method.
            root: Run of the folder.
        """
        colour = mlflow_view.COLOURS[number % len(mlflow_view.COLOURS)]
        tags = {key: method, mlflow_view.COLOUR_TAG: colour}
        return self._run(f"methods/{method}", method, root.id, "method", tags), tags

    def _set_status(self, run: MlflowRun, status: str) -> None:
        """Set the status of the run of the folder or of a method."""
        run.set_status(status, None if status == "RUNNING" else self._last_change())
        run.set_tags({"state": status.lower()})

    def _last_change(self) -> int:
        """Return when a file of the folder was last written, in ms since 1970."""
        written = [self._folder / self.marker, *self._folder.glob(self.changing)]
        return max(int(file.stat().st_mtime * 1000) for file in written)

    def _set_views(self, root: MlflowRun, views: Mapping[str, str]) -> None:
        """Set views of runs on MLflow's pages, if they have changed since the last time.

        Args:
            root: Run of the folder.
            views: The views by the part of the folder that they show; "" is the folder itself.
        """
        digest = sha256("".join(views.values()).encode()).hexdigest()
        if root.tags.get(VIEW_TAG) != digest:
            for part, view in views.items():
                name = mlflow_view.view_name(self._id, part)
                self._store.set_view(self._experiment, name, view)
            root.set_tags({VIEW_TAG: digest})


def file_versions(folder: Path, *names: str) -> tuple[tuple[int, int] | None, ...]:
    """Return modification time and size of files of a folder; None for one that does not exist."""
    stats = (file.stat() if file.exists() else None for file in (folder / name for name in names))
    return tuple(stat and (stat.st_mtime_ns, stat.st_size) for stat in stats)
