"""Files on their way to MLflow: each is sent on its own, after everything else.

A file store may refuse a file, or be away, while MLflow itself answers. Therefore files wait until
metrics, parameters, tags and the states of all runs are sent, and one that is not stored keeps no
other back.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

from flbench.core import files
from flbench.core.errors import UserError, shortened
from flbench.core.text import one_line
from flbench.tracking import mlflow_errors, mlflow_store
from flbench.tracking.mlflow_errors import Trouble

FIRST_PAUSE: Final = 2.0  # seconds until a file that was not stored is sent again
MAX_PAUSE: Final = 60.0
MAX_AWAY: Final = 2
"""Files in sequence for which the store is not reached, or answers an error that may pass, after
which the others are not tried: a server may take seconds for each."""
SERVE: Final = (
    "Make it writable. A folder of another machine needs a server that serves the files (mlflow"
    " server --artifacts-destination FOLDER) and a new experiment"
)
LONGEST_NAME: Final = 80  # characters of a name, and of the names before the last one


class NotStoredError(UserError):
    """Files were not stored, and everything else was sent. The message names them by reason.

    Attributes:
        is_passing: Whether the same may succeed seconds later.
    """

    def __init__(self, message: str, *, is_passing: bool) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class FileOwner(Protocol):
    """The run in MLflow that a file belongs to."""

    id: str
    name: str

    @property
    def client(self) -> Any:
        """The `mlflow.MlflowClient` of the store that contains the run."""

    def record_uploads(self, digests: dict[str, str]) -> None:
        """Record in the run's tags that MLflow has files with these digests, by their names."""


@dataclass(frozen=True)
class Upload:
    """A file on its way.

    Attributes:
        run: The run that it belongs to.
        name: Its name.
        folder: Folder among the run's artifacts; None for the top.
        content: The file itself, or its bytes.
        digest: Digest that the run's tags record.
    """

    run: FileOwner
    name: str
    folder: str | None
    content: Path | bytes
    digest: str

    @property
    def key(self) -> str:
        """Its path among the run's artifacts."""
        return self.name if self.folder is None else f"{self.folder}/{self.name}"

    def is_there(self) -> bool:
        """Return whether the file still exists."""
        return isinstance(self.content, bytes) or self.content.is_file()

    def send(self) -> None:
        """Send the file.

        Raises:
            UserError: It is a link.
            Exception: The store does not take it; the exception is one of any file store's client.
        """
        if isinstance(self.content, Path):
            files.check_no_link(self.content)
            with mlflow_store.upload_settings(self.content.stat().st_size):
                self.run.client.log_artifact(self.run.id, str(self.content), self.folder)
            return
        with TemporaryDirectory() as place:
            file = Path(place) / self.name
            file.write_bytes(self.content)
            with mlflow_store.upload_settings(len(self.content)):
                self.run.client.log_artifact(self.run.id, str(file), self.folder)


class Failure(NamedTuple):
    """Why a file was not stored, and when it is sent again.

    Attributes:
        digest: Digest of the file.
        trouble: The reason.
        pause: Seconds between the last two attempts.
        again: Time of the next attempt, on the clock of `time.monotonic`.
    """

    digest: str
    trouble: Trouble
    pause: float
    again: float


class Uploads:
    """Files of all runs of a mirror that wait to be sent."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], Upload] = {}
        self._failures: dict[tuple[str, str], Failure] = {}

    def add(self, upload: Upload) -> None:
        """Add a file, which replaces an earlier version of it that still waits."""
        self._waiting[upload.run.id, upload.key] = upload

    def send(self, shown: str, *, is_last: bool) -> None:
        """Send the files that wait. Those that are not stored wait for the next call.

        Args:
            shown: Address of the store without its secrets.
            is_last: Whether files that were not stored before are sent again without a pause.

        Raises:
            NotStoredError: Files were not stored.
            UserError: A file is a link.
        """
        away: list[Trouble] = []
        for _, group in groupby(list(self._waiting.values()), key=lambda upload: upload.run.id):
            self._send_of_run(list(group), away, is_last=is_last)
        if self._failures:
            raise self._error(shown)

    def _send_of_run(
        self, uploads: Iterable[Upload], away: list[Trouble], *, is_last: bool
    ) -> None:
        """Send files of one run, and record those that are stored.

        Args:
            uploads: The files.
            away: Troubles of the last files, in sequence, that concern the store rather than the
                file. It is changed.
            is_last: See `send`.
        """
        stored: dict[str, str] = {}
        run = None
        try:
            for upload in uploads:
                run, key = upload.run, (upload.run.id, upload.key)
                known = self._failures.get(key)
                is_same = known is not None and known.digest == upload.digest
                if known and is_same and not is_last and time.monotonic() < known.again:
                    continue
                if not upload.is_there():
                    self._forget(key)
                    continue
                trouble = away[-1] if len(away) >= MAX_AWAY else self._try(upload)
                if trouble is None:
                    stored[upload.key] = upload.digest
                    self._forget(key)
                    away.clear()
                    continue
                if trouble.is_reached and not trouble.is_passing:
                    away.clear()
                elif len(away) < MAX_AWAY:
                    away.append(trouble)
                pause = min(MAX_PAUSE, 2 * known.pause) if known and is_same else FIRST_PAUSE
                again = time.monotonic() + pause
                self._failures[key] = Failure(upload.digest, trouble, pause, again)
        finally:
            if run is not None and stored:
                run.record_uploads(stored)

    def _try(self, upload: Upload) -> Trouble | None:
        """Send a file, and return why it was not stored; None if it was."""
        try:
            upload.send()
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001  # any client of a file store
            trouble = mlflow_errors.explain(error)
            is_of_folder = trouble.cure == mlflow_errors.WRITABLE
            return replace(trouble, cure=SERVE) if is_of_folder else trouble
        return None

    def _forget(self, key: tuple[str, str]) -> None:
        self._waiting.pop(key, None)
        self._failures.pop(key, None)

    def _error(self, shown: str) -> NotStoredError:
        """Return the error that names the files that were not stored, by their reasons."""
        names: dict[Trouble, list[str]] = {}
        has_several = len({run for run, _ in self._failures}) > 1
        for key, failure in self._failures.items():
            upload = self._waiting[key]
            name = f"{upload.run.name}: {upload.key}" if has_several else upload.key
            names.setdefault(failure.trouble, []).append(name)
        lines = []
        for trouble, found in names.items():
            lines.append(f"MLflow at {shown} did not store {_listed(found)}.")
            cure = f" {trouble.cure}." if trouble.cure else ""
            if not trouble.is_reached:
                lines.append(f"The store of the files was not reached ({trouble.reason}).{cure}")
            else:
                lines.append(f"The reason: {trouble.reason}.{cure}")
        is_passing = any(failure.trouble.is_passing for failure in self._failures.values())
        return NotStoredError("\n".join(lines), is_passing=is_passing)


def _listed(names: list[str]) -> str:
    """Return the number of files and the first names."""
    shown: list[str] = []
    for name in names:
        shown.append(shortened(one_line(name), LONGEST_NAME))
        if sum(map(len, shown)) > LONGEST_NAME:
            break
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    count = f"{len(names):,} files" if len(names) > 1 else "1 file"
    return f"{count}: {', '.join(shown)}{more}"
