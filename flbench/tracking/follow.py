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

from filelock import FileLock, Timeout

from flbench.comparison.folder import is_cell, is_comparison
from flbench.core import files
from flbench.core.errors import DataError, UserError
from flbench.core.text import one_line
from flbench.results.study_folder import is_study
from flbench.tracking import errors, store
from flbench.tracking.mirror import NOT_SENT, Outcome
from flbench.tracking.send import NotSentError, Sender, SentCounts
from flbench.tracking.store import Address, NamedBy, Store
from flbench.tracking.tree import tracking_of

PAUSE: Final = 1.0  # seconds between two looks at the folder
MAX_PAUSE: Final = 60.0  # seconds between two attempts while something cannot be sent
SHARE: Final = 10.0  # a look that takes a second is followed by a pause of ten
NICENESS: Final = 15  # the training process has priority
EXIT_FAILED: Final = 3
END_SECONDS: Final = 8.0
"""Seconds in which a store that is away after the writing process has ended is tried again."""
SYNC_SETTINGS: Final = {
    store.TIMEOUT_VARIABLE: "10",  # seconds
    store.RETRIES_VARIABLE: "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",  # at once, after 2 s and after 4 s
}
"""MLflow's settings for `flbench sync`, for which no training waits."""


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


def sync_all(folders: Sequence[Path], uri: str | None) -> Iterator[Synced]:
    """Send several folders, one after the other. One that cannot be sent does not stop the rest.

    Raises:
        UserError: A path is neither a run nor a study nor a comparison; nothing is sent.
    """
    wholes = [check(folder) for folder in folders]
    for folder, found in zip(folders, wholes, strict=True):
        counts, shown, error = SentCounts(), None, None
        try:
            shown = _address_of(found, uri).shown
            sync(folder, uri, counts)
        except UserError as caught:
            rest = ""
            if isinstance(caught, NotSentError) and caught.is_of_files:
                rest = "\nEverything else was sent. The next flbench sync sends these files."
            about = f"{folder} is not completely in MLflow:\n" if len(folders) > 1 else ""
            error = UserError(f"{about}{caught}{rest}")
        yield Synced(folder, shown, counts if counts or error is None else None, error)


def sync(folder: Path, uri: str | None, counts: SentCounts | None = None) -> tuple[SentCounts, str]:
    """Send to MLflow what it does not have yet of the folder of a run, study or comparison.

    Somebody waits for it: MLflow repeats requests that fail.

    Args:
        folder: The folder; with a cell or a trial, its whole comparison or study is sent.
        uri: Address of the store; None for the one that the folder's configuration names, if that
            is the user's own; see `store.address`.
        counts: Gets the numbers of what was sent, also if an error is raised.

    Returns:
        Counts of what was sent, and the address of the store without its secrets.

    Raises:
        UserError: The path is neither a run nor a study nor a comparison, another process sends
            it, the environment lacks the password of its address, a file or folder in it is a
            link, or it names an address that is not the user's own.
        NotSentError: The store was not reached or cannot be used, or files were not stored.
        DataError: Files of the folder are damaged. Everything else was sent, unless they describe
            the whole folder.
    """
    store.require()
    folder = check(folder)
    address = _address_of(folder, uri)
    counts = SentCounts() if counts is None else counts
    with _locked(folder) as is_locked, store.settings(SYNC_SETTINGS), _explained(address):
        if not is_locked:
            raise UserError(f"another process is sending {folder} to MLflow. Wait for it.")
        sender = Sender(_open_now(address), folder)
        sender.sent = counts
        sender.send("unknown")
    return counts, address.shown


@contextmanager
def _explained(address: Address) -> Iterator[None]:
    """Raise a NotSentError instead of an error of MLflow inside the context."""
    try:
        yield
    except errors.connection_errors() as error:
        trouble = errors.explain(error)
        raise NotSentError(trouble.sentence(address.shown), trouble.kind) from error


def _address_of(folder: Path, uri: str | None) -> Address:
    """Return the address of a folder's store."""
    files.check_no_linked_folders(folder)
    if uri:
        return store.address(uri)
    named = tracking_of(folder).get("uri")
    return store.address(str(named) if named else None, "folder")


def _open_now(address: Address) -> Store:
    """Open a store. One that is not reached is tried once, and one that answers several times."""
    try:
        with store.settings({store.RETRIES_VARIABLE: "0"}):
            return store.open_store(address)
    except errors.connection_errors() as error:
        if errors.explain(error).kind != "busy":
            raise
    return store.open_store(address)


def check(folder: Path) -> Path:
    """Return the folder of a run, a comparison or a study that a path is, or is a part of.

    Raises:
        UserError: It is no such folder.
    """
    found = _whole(folder)
    if not (is_study(found) or is_comparison(found) or (found / "config.yaml").is_file()):
        raise UserError(
            f"{folder} is not a folder of a run, a study or a comparison: it has no config.yaml, no"
            " study.json and no comparison.json."
        )
    return found


def _whole(folder: Path) -> Path:
    """Return a folder, or the comparison or the study that it is a cell or a trial of.

    Links are resolved, because the name of the folder finds the run in MLflow.
    """
    found = folder.resolve()
    if is_cell(found):
        return found.parents[1]
    above = found.parents
    is_trial = (found / "trial.json").is_file() and len(above) > 2 and is_study(above[2])
    return above[2] if is_trial else found


def main(arguments: Sequence[str]) -> int:
    """Send a folder until the process that writes it has ended and everything is sent.

    The writing process holds the other end of standard input, and writes there how it ended. The
    address of the store comes in $MLFLOW_TRACKING_URI, because a command line is visible to all
    users of the machine.

    Returns:
        Exit code: 0 if everything was sent.
    """
    parser = argparse.ArgumentParser(prog="flbench.tracking.follow")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experiment")
    parser.add_argument("--named-by", choices=get_args(NamedBy), default="user")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    folder, writer = _whole(options.folder), _WritingProcess()
    address = Address(os.environ[store.ADDRESS_VARIABLE], options.named_by)
    while True:
        with _locked(folder) as is_locked:
            if is_locked:
                return _follow(folder, address, options.experiment, writer)
        time.sleep(PAUSE / 10)  # a mirror that was started earlier still sends the folder


def _follow(
    folder: Path, address: Address, experiment: str | None, writer: "_WritingProcess"
) -> int:
    """Send a folder again and again until it is complete, and return the exit code."""
    sender: Sender | None = None
    outcome: Outcome | None = None
    pause, last_problem, was_reached, last_attempt = 0.0, "", False, 0.0
    while True:
        if outcome is None:
            outcome = writer.wait(pause)
        else:
            time.sleep(pause)
        problem, is_passing, began = "", False, time.monotonic()
        try:
            with _explained(address):
                sender = sender or Sender(store.open_store(address), folder, experiment)
                was_reached = True
                sender.send(outcome)
        except NotSentError as error:
            was_reached = was_reached or error.kind != "away"
            problem, is_passing = str(error), error.kind != "refused" and was_reached
            if not error.is_of_files:
                sender = None  # it is not known what has arrived: the next one asks the store
        except DataError as error:
            problem = str(error)  # the file may be complete or repaired the next time
        except UserError as error:
            _log(str(error))
            return EXIT_FAILED
        if problem and (outcome is not None or problem != last_problem):
            _log(problem)
        last_problem = problem
        if outcome is None:
            if sender is not None and sender.is_finished and not problem:
                return 0
            longest = min(MAX_PAUSE, 2 * max(pause, PAUSE)) if problem else PAUSE
            pause = max(longest, min(MAX_PAUSE, SHARE * (time.monotonic() - began)))
            continue
        pause = PAUSE
        last_attempt = last_attempt or time.monotonic() + END_SECONDS
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
    lock = FileLock(folder / ".mirror")
    with suppress(Timeout):
        lock.acquire(blocking=False)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _log(problem: str) -> None:
    """Write a problem as one line on standard error, which is the log of the mirror."""
    sys.stderr.write(one_line(f"{NOT_SENT}{problem}") + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
