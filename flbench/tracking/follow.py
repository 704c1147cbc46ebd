"""Sending a folder to MLflow: `sync` sends it once, `main` follows it while it is written."""

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from flbench.comparison.folder import is_cell, is_comparison, read_design
from flbench.core import files
from flbench.core.documents import as_data_error, read_yaml
from flbench.core.errors import DataError, UserError
from flbench.core.text import HTTP, one_line, redact_address
from flbench.core.wording import in_shell
from flbench.tracking import mlflow_errors, mlflow_store
from flbench.tracking.mirror import NOT_SENT, REFUSED, Outcome
from flbench.tracking.mirror_comparison import CellMirror, ComparisonMirror
from flbench.tracking.mirror_run import RunMirror
from flbench.tracking.mirror_study import StudyMirror
from flbench.tracking.mlflow_run import SentCounts
from flbench.tracking.mlflow_store import NamedBy, Store
from flbench.tracking.mlflow_uploads import NotStoredError

PAUSE: Final = 1.0  # seconds between two looks at the folder
MAX_PAUSE: Final = 60.0  # seconds between two attempts while the store cannot be reached
NICENESS: Final = 15  # the training process has priority
EXIT_FAILED: Final = 3
END_SECONDS: Final = 8.0
"""Seconds in which a store that is away after the writing process has ended is tried again."""
SYNC_SETTINGS: Final = {
    mlflow_store.TIMEOUT_VARIABLE: "10",  # seconds
    mlflow_store.RETRIES_VARIABLE: "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",  # at once, after 2 s and after 4 s
}
"""MLflow's settings for `flbench sync`, for which no training waits."""
AnyMirror = RunMirror | StudyMirror | ComparisonMirror | CellMirror
FolderMirror = type[RunMirror] | type[StudyMirror] | type[ComparisonMirror] | type[CellMirror]


@dataclass(frozen=True)
class Synced:
    """What `sync_all` did with a folder.

    Attributes:
        path: The folder, as it was given.
        uri: Address of the store without its secrets; None if it is not known.
        sent: Numbers of what was sent; None if nothing was.
        error: Why something or everything is missing in MLflow; None if everything is there.
    """

    path: Path
    uri: str | None
    sent: SentCounts | None
    error: UserError | None


class UnreachedError(UserError):
    """A store was not reached.

    Attributes:
        uri: Its address without its secrets.
    """

    def __init__(self, message: str, uri: str) -> None:
        super().__init__(message)
        self.uri = uri


def sync_all(folders: Sequence[Path], uri: str | None) -> Iterator[Synced]:
    """Send several folders, one after the other. One that cannot be sent does not stop the rest.

    A store that was not reached for one folder is not tried for others.

    Args:
        folders: The folders; see `sync`.
        uri: See `sync`.

    Raises:
        UserError: A path is neither a run nor a study nor a comparison; nothing is sent.
    """
    for folder in folders:
        kind_of(folder)
    unreached: set[str] = set()
    for folder in folders:
        counts = SentCounts()
        shown, error = None, None
        try:
            shown = _store_of(folder.resolve(), uri)[2]
            if shown in unreached:
                error = UserError(f"{folder} was not sent: MLflow at {shown} was not reached.")
            else:
                sync(folder, uri, counts)
        except UnreachedError as caught:
            unreached.add(caught.uri)
            error = caught
        except UserError as caught:
            about = f"{folder} is not completely in MLflow:\n" if len(folders) > 1 else ""
            if isinstance(caught, NotStoredError):
                rest = "\nEverything else was sent. The next flbench sync sends these files."
            else:
                rest = ""
            error = UserError(f"{about}{caught}{rest}")
        yield Synced(folder, shown, counts if counts or error is None else None, error)


def sync(folder: Path, uri: str | None, counts: SentCounts | None = None) -> tuple[SentCounts, str]:
    """Send to MLflow what it does not have yet of the folder of a run, study or comparison.

    Somebody waits for it: MLflow repeats requests that fail.

    Args:
        folder: The folder. A cell of a comparison is sent to its place below the comparison.
        uri: Address of the store; None for the one that the folder's configuration names, if that
            is the user's own; see `mlflow_store.address`.
        counts: Gets the numbers of what was sent, also if an error is raised.

    Returns:
        Counts of what was sent, and the address of the store without its secrets.

    Raises:
        UserError: The path is neither a run nor a study nor a comparison, another process sends
            it, the store cannot be used, the environment lacks the password of its address, a
            file or folder in it is a link, or it names an address that is not the user's own.
        UnreachedError: The store was not reached.
        NotStoredError: Files were not stored. Everything else was sent.
        DataError: Files of the folder are damaged. Everything else was sent, unless they describe
            the whole folder.
    """
    mlflow_store.require()
    folder = folder.resolve()  # the name of the folder finds the run in MLflow
    mirror_class = kind_of(folder)
    address, named_by, shown = _store_of(folder, uri)
    mirror: AnyMirror | None = None
    with _locked(folder) as is_locked, mlflow_store.settings(SYNC_SETTINGS):
        if not is_locked:
            raise UserError(f"another process is sending {folder} to MLflow. Wait for it.")
        try:
            mirror = mirror_class(_open_now(address, named_by), folder)
            mirror.send("unknown")
        except mlflow_errors.connection_errors() as error:
            trouble = mlflow_errors.explain(error)
            if trouble.is_reached:
                raise UserError(trouble.sentence(shown)) from error
            raise UnreachedError(trouble.sentence(shown), shown) from error
        finally:
            if counts is not None and mirror is not None:
                vars(counts).update(vars(mirror.sent))
    return mirror.sent, shown


def _store_of(folder: Path, uri: str | None) -> tuple[str, NamedBy, str]:
    """Return the address of a folder's store, who names it, and the address without its secrets.

    Raises:
        UserError: A folder below it is a link; or see `mlflow_store.address`.
    """
    files.check_no_linked_folders(folder)
    named_by: NamedBy = "user" if uri else "folder"
    asked = uri or _configured_uri(folder)
    address = mlflow_store.address(asked, named_by)
    return address, mlflow_store.who_names(asked, named_by), redact_address(address)


def _open_now(address: str, named_by: NamedBy) -> Store:
    """Open a store. One that is not reached is tried once, and one that answers several times."""
    try:
        with mlflow_store.settings({mlflow_store.RETRIES_VARIABLE: "0"}):
            return mlflow_store.open_store(address, named_by)
    except mlflow_errors.connection_errors() as error:
        trouble = mlflow_errors.explain(error)
        if not (trouble.is_reached and trouble.is_passing and urlsplit(address).scheme in HTTP):
            raise
    return mlflow_store.open_store(address, named_by)


def kind_of(folder: Path) -> FolderMirror:
    """Return the class that mirrors a folder.

    Raises:
        UserError: The path is not a folder of a run, a study or a comparison.
    """
    if not folder.exists():
        raise UserError(f"{folder} does not exist.")
    if (folder / "study.json").is_file():
        return StudyMirror
    if (folder / "trial.json").is_file():
        study = folder.resolve().parents[2]
        raise UserError(
            f"{folder} is part of a study. Send the whole study: flbench sync {in_shell(study)}"
        )
    if is_comparison(folder):
        return ComparisonMirror
    if (folder / "config.yaml").is_file():
        return CellMirror if is_cell(folder) else RunMirror
    raise UserError(
        f"{folder} is not a folder of a run, a study or a comparison: it has no config.yaml, no"
        " study.json and no comparison.json."
    )


def main(arguments: Sequence[str]) -> int:
    """Send a folder until the process that writes it has ended and everything is sent.

    The writing process holds the other end of standard input, and writes there how it ended. The
    address of the store comes in $MLFLOW_TRACKING_URI, because a command line is visible to all
    users of the machine.

    Args:
        arguments: Command line of the mirror process.

    Returns:
        Exit code: 0 if everything was sent.
    """
    parser = argparse.ArgumentParser(prog="flbench.tracking.follow")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experiment")
    parser.add_argument("--named-by", choices=get_args(NamedBy), default="user")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    folder, writer = options.folder.resolve(), _WritingProcess()
    uri = mlflow_store.address(None)
    while True:
        with _locked(folder) as is_locked:
            if is_locked:
                return _follow(folder, (uri, options.named_by), options.experiment, writer)
        time.sleep(PAUSE / 10)  # a mirror that was started earlier still sends the folder


def _follow(
    folder: Path, address: tuple[str, NamedBy], experiment: str | None, writer: "_WritingProcess"
) -> int:
    """Send a folder again and again until it is complete.

    Args:
        folder: The folder.
        address: Address of the store, and who names it.
        experiment: Name of the experiment; None for the default.
        writer: The process that writes the folder.

    Returns:
        The exit code.
    """
    mirror: AnyMirror | None = None
    shown, was_reached = redact_address(address[0]), False
    outcome: Outcome | None = None
    pause, last_problem = 0.0, ""
    last_attempt: float | None = None
    while True:
        if outcome is None:
            outcome = writer.wait(pause)
        else:
            time.sleep(pause)
        problem, is_passing = "", False
        try:
            if mirror is None:
                mirror = kind_of(folder)(mlflow_store.open_store(*address), folder, experiment)
                was_reached = True
            mirror.send(outcome)
        except NotStoredError as error:
            problem, is_passing = f"{NOT_SENT}{error}", error.is_passing
        except DataError as error:
            # The file may be complete or repaired the next time.
            problem = f"{REFUSED}{error}"
        except UserError as error:
            _log(f"{REFUSED}{error}")
            return EXIT_FAILED
        except mlflow_errors.connection_errors() as error:
            # It is not known what has arrived: the next mirror reads it from the store.
            trouble = mlflow_errors.explain(error)
            mirror, problem = None, f"{NOT_SENT}{trouble.clause(shown)}"
            was_reached = was_reached or trouble.is_reached
            is_passing = trouble.is_passing and was_reached
        if problem and (outcome is not None or problem != last_problem):
            _log(problem)
        last_problem = problem
        if outcome is None:
            pause = min(MAX_PAUSE, 2 * max(pause, PAUSE)) if mirror is None else PAUSE
            if mirror is not None and mirror.finished and not problem:
                return 0
            continue
        pause = PAUSE
        if last_attempt is None:
            last_attempt = time.monotonic() + END_SECONDS
        if not is_passing or time.monotonic() + pause > last_attempt:
            return EXIT_FAILED if problem else 0


class _WritingProcess:
    """The process that writes the folder: the parent of this process."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def wait(self, seconds: float) -> Outcome | None:
        """Wait until the process has ended, but at most some seconds.

        Returns:
            How the process ended; None if it still runs.
        """
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([sys.stdin], [], [], min(left, PAUSE))
            if ready:
                word = os.read(sys.stdin.fileno(), 100).decode()
                return next((known for known in get_args(Outcome) if known == word), "killed")
            if os.getppid() != self._parent:
                return "killed"
            if not left:
                return None


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder inside the context, unless another process mirrors it; yield whether it is."""
    # A cell is sent below the run of its comparison, which two mirrors must not make at once.
    lock = FileLock((folder.parents[1] if is_cell(folder) else folder) / ".mirror")
    with suppress(Timeout):
        lock.acquire(blocking=False)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _configured_uri(folder: Path) -> str | None:
    """Return the store that the configuration of a folder names; None if it names none."""
    if is_cell(folder):
        folder = folder.parents[1]
    if is_comparison(folder):
        tracking = read_design(folder)[0].base.tree.get("tracking") or {}
        return str(tracking["uri"]) if tracking.get("uri") else None
    for file in (folder / "config.yaml", *sorted(folder.glob("methods/*.yaml"))):
        tracking = read_yaml(file).get("tracking")
        with as_data_error(file):
            if uri := (tracking or {}).get("uri"):
                return str(uri)
    return None


def _log(message: str) -> None:
    """Write a message as one line on standard error, which is the log of the mirror."""
    sys.stderr.write(one_line(message) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
