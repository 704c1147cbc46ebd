"""Following a folder: `sync` once and to the end, `main` as long as another process writes it."""

import argparse
import fcntl
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

from flbench.core.documents import as_data_error, read_yaml
from flbench.core.errors import DataError, UserError
from flbench.tracking import mlflow_store
from flbench.tracking.mirror import REFUSED, UNREACHED
from flbench.tracking.mirror_run import Ending, RunMirror
from flbench.tracking.mirror_study import StudyMirror
from flbench.tracking.mlflow_entry import Sent

PAUSE: Final = 1.0  # seconds between two looks at the folder
LONGEST: Final = 60.0  # seconds between two attempts while the server is away
GENTLE: Final = 15  # of nice: the run comes first
FAILED: Final = 3
Kind = type[RunMirror] | type[StudyMirror]


def sync(path: Path, uri: str | None) -> tuple[Sent, str]:
    """Send what MLflow does not have of a run folder or a study folder.

    Returns: what was sent, and where to.
    Raises: UserError if the path is neither, or the store cannot be reached.
    """
    mlflow_store.require()
    path = path.resolve()  # `.` has no name, and a run is found again by its folder's
    kind = kind_of(path)
    address = mlflow_store.address(uri or _asked(path))
    os.environ.setdefault(mlflow_store.LATE, "10")  # nothing but a person waits
    with _alone(path) as free:
        if not free:
            raise UserError(f"another process is sending {path} to MLflow. Wait for it.")
        try:
            mirror = kind(mlflow_store.open_store(address), path)
            mirror.send("unknown")
        except mlflow_store.troubles() as error:
            reason = mlflow_store.reason(error)
            raise UserError(
                f"MLflow at {address} was not reached ({reason}). Start it, or give another --uri."
            ) from error
    return mirror.sent, address


def kind_of(path: Path) -> Kind:
    """Return what mirrors a folder.

    Raises: UserError if it is neither a run nor a study.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if (path / "study.json").is_file():
        return StudyMirror
    if (path / "trial.json").is_file():
        study = path.resolve().parents[2]
        raise UserError(
            f"{path} is part of a study, which is sent as a whole: flbench sync {study}"
        )
    if (path / "config.yaml").is_file():
        return RunMirror
    raise UserError(
        f"{path} is neither a run folder nor a study: it has no config.yaml and no study.json."
    )


def main(arguments: Sequence[str]) -> int:
    """Mirror a folder until its writer has ended and all is sent; return the exit code.

    The writer holds the other end of standard input, and says there how it ended.
    """
    parser = argparse.ArgumentParser(prog="flbench.tracking.follow")
    parser.add_argument("path", type=Path)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--experiment")
    given = parser.parse_args(arguments)
    os.nice(GENTLE)
    path, writer = given.path.resolve(), _Writer()
    while True:
        with _alone(path) as free:
            if free:
                return _follow(path, given.uri, given.experiment, writer)
        time.sleep(PAUSE / 10)  # an earlier mirror of the folder is still at work


def _follow(path: Path, uri: str, experiment: str | None, writer: "_Writer") -> int:
    mirror: RunMirror | StudyMirror | None = None
    pause, said = 0.0, ""
    while True:
        ending, wrong = writer.wait(pause), ""
        try:
            if mirror is None:
                mirror = kind_of(path)(mlflow_store.open_store(uri), path, experiment)
            mirror.send(ending)
        except DataError as error:  # a file that is whole the next time, or mended meanwhile
            wrong = f"{REFUSED}{error}"
        except UserError as error:
            _say(f"{REFUSED}{error}")
            return FAILED
        except mlflow_store.troubles() as error:
            # What came through is not known: the next attempt asks the store.
            mirror, wrong = None, f"{UNREACHED}{mlflow_store.reason(error)}"
        pause = min(LONGEST, 2 * max(pause, PAUSE)) if mirror is None else PAUSE
        if wrong and (ending is not None or wrong != said):
            _say(wrong)
        said = wrong
        if ending is not None:
            return FAILED if wrong else 0
        if mirror is not None and mirror.finished and not wrong:
            return 0


class _Writer:
    """The process that writes the folder, which is this process's parent."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def wait(self, seconds: float) -> Ending | None:
        """Return how the writer ended as soon as it has, or None after some seconds."""
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([sys.stdin], [], [], min(left, PAUSE))
            if ready:
                word = os.read(sys.stdin.fileno(), 100).decode()
                return next((known for known in get_args(Ending) if known == word), "killed")
            if os.getppid() != self._parent:
                return "killed"
            if not left:
                return None


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Say whether no other process mirrors the folder; none can, meanwhile."""
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _asked(path: Path) -> str | None:
    """Return the store that the folder's configuration names."""
    for file in (path / "config.yaml", *sorted(path.glob("methods/*.yaml"))):
        tracking = read_yaml(file).get("tracking")
        with as_data_error(file):
            if uri := (tracking or {}).get("uri"):
                return str(uri)
    return None


def _say(text: str) -> None:
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
