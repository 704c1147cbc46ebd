"""Servers that are processes of this machine."""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

START_SECONDS: Final = 400.0


def wait_until(holds: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until something holds, and fail if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what} within {seconds:g} s"
        time.sleep(0.2)


def with_descendants(pid: int) -> list[int]:
    """Return the id of a process and those of its descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:  # it has ended
        return []
    return [pid, *(one for child in children for one in with_descendants(child))]


class ProcessServer(ABC):
    """A server that is a process of this machine, with its children.

    Args:
        folder: Folder for its log.

    Attributes:
        address: Where clients find it.
    """

    address: str
    stopping = signal.SIGTERM  # the signal that stops the server

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers."""

    def environment(self) -> dict[str, str]:
        """Return environment variables for the server besides those of the tests."""
        return {}

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self.folder / f"{type(self).__name__}.log"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        process = self._process

        def is_ready() -> bool:
            assert process.poll() is None, self.log.read_text()[-2000:]
            return self.answers()

        wait_until(is_ready, f"{type(self).__name__} did not answer")

    def stop(self) -> None:
        """Stop the server as an administrator does. It may be started again."""
        self._end(self.stopping)

    def kill(self) -> None:
        """End the server without a warning. It may be started again."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        everything = with_descendants(self._process.pid)
        for pid in everything if number == signal.SIGKILL else everything[:1]:
            with suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, number)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None
