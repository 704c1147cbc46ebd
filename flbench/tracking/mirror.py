"""A mirror: a process of its own that sends a folder to MLflow while it is being written.

The folder is the truth. The process that trains never talks to MLflow: it starts the mirror, and at
its end says how it ended and waits a few seconds. A server that is away cannot stop or slow a run.
`python -m flbench.tracking.follow` is the mirror itself.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from flbench.config.schema import Config, TrackingConfig
from flbench.core.errors import ConfigError
from flbench.tracking import mlflow_store
from flbench.tracking.mirror_run import Ending

LOG: Final = "mlflow.log"
UNREACHED: Final = "not sent: "  # how its lines begin where the store is away,
REFUSED: Final = "refused: "  # and where a person must mend something
PATIENCE: Final = 10.0  # seconds that a command waits for its mirrors at its end


def check(config: TrackingConfig) -> None:
    """Raise a ConfigError if MLflow is asked for and not installed."""
    if config.mlflow is True and not mlflow_store.installed():
        raise ConfigError(f"`tracking.mlflow=true`: {mlflow_store.INSTALL}, or leave it out.")


def start(path: Path, config: TrackingConfig) -> "Mirror | None":
    """Start to mirror a run folder, or a study folder with all that is in it.

    Returns: the mirror; None where it is switched off, or MLflow is not installed.
    Raises: ConfigError if MLflow is asked for and not installed.
    """
    check(config)
    if config.mlflow is False or not mlflow_store.installed():
        return None
    uri = mlflow_store.address(config.uri)
    # `.` has no name, and a run is found again by its folder's.
    command = [sys.executable, "-m", "flbench.tracking.follow", str(path.resolve()), "--uri", uri]
    if config.experiment is not None:
        command += ["--experiment", config.experiment]
    with (path / LOG).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end is this process's end, however that comes
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
    return Mirror(path, uri, process)


@dataclass
class Mirror:
    """A mirror that runs.

    Attributes:
        path: the folder.
        uri: where it is sent to.
        process: that does it.
    """

    path: Path
    uri: str
    process: "subprocess.Popen[bytes]"

    def tell(self, ending: Ending) -> None:
        """Say how the run ended; the mirror sends the rest and ends."""
        pipe = self.process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            pipe.write(ending.encode())
            pipe.close()
        except BrokenPipeError:  # it has ended already
            return

    def finish(self, timeout: float = PATIENCE, ending: Ending = "finished") -> str | None:
        """Wait until all is sent, but not longer than `timeout` seconds.

        Returns: a sentence if it was not; None if all is well.
        """
        self.tell(ending)
        cure = f"flbench sync {self.path} sends what is missing."
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f"MLflow at {self.uri} is slow, and files are still being sent: {cure}"
        if code == 0:
            return None
        said = self._last_words()
        if said.startswith(REFUSED):
            return f"{said.removeprefix(REFUSED)} Then {cure}"
        return f"MLflow at {self.uri} was not reached ({said.removeprefix(UNREACHED)}): {cure}"

    def _last_words(self) -> str:
        lines = (self.path / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.startswith((UNREACHED, REFUSED))]
        return (said or lines or ["it ended without a word"])[-1]


class Mirrors:
    """The mirrors of a command, which runs one experiment after the other.

    `with` tells each how its run ended; `finish` waits for all of them.
    """

    def __init__(self) -> None:
        self._mirrors: list[Mirror] = []
        self._said: list[str] = []

    def open(self, path: Path, config: Config) -> None:
        """Start the mirror of a run; the one before it is over."""
        self._tell("finished")
        try:
            mirror = start(path, config.tracking)
        except OSError as error:  # no memory for a process: the run comes first
            self._said.append(
                f"nothing of {path} was sent to MLflow ({error.strerror}): flbench sync {path}"
            )
            return
        if mirror is not None:
            self._mirrors.append(mirror)

    def finish(self) -> list[str]:
        """Wait a few seconds until all is sent; return a sentence for each that is not."""
        said = [mirror.finish(PATIENCE / (1 + k)) for k, mirror in enumerate(self._mirrors)]
        return [*self._said, *(sentence for sentence in said if sentence is not None)]

    def _tell(self, ending: Ending) -> None:
        if self._mirrors:
            self._mirrors[-1].tell(ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._tell("finished")
        else:
            self._tell("killed" if issubclass(kind, KeyboardInterrupt) else "failed")
