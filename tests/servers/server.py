"""Servers that are processes: MLflow, as `mlflow/compose.yaml` starts it, and S3."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

START_SECONDS: Final = 400.0
S3_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "flbench",
    "AWS_SECRET_ACCESS_KEY": "flbench-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables of clients of S3."""


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
        environment: Environment variables besides those of the tests.
    """

    address: str
    stopping = signal.SIGTERM  # the signal that stops the server

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers."""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{type(self).__name__}.log"
        with file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        process = self._process

        def is_ready() -> bool:
            assert process.poll() is None, file.read_text()[-2000:]
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


def is_healthy(address: str) -> bool:
    """Return whether a page answers."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status == 200
    except OSError:
        return False


class Mlflow(ProcessServer):
    """A server of MLflow on the loopback interface.

    Args:
        folder: Folder for its log.
        port: Its port.
        s3: Address of the server of S3 to which clients send files; None to serve them from a
            folder.
    """

    def __init__(self, folder: Path, port: int, s3: str | None) -> None:
        super().__init__(folder)
        self.address = f"http://127.0.0.1:{port}"
        files = [f"--artifacts-destination={folder / 'files'}"]
        self.environment = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        if s3 is not None:
            files = ["--no-serve-artifacts", f"--default-artifact-root=s3://{S3.bucket}"]
            self.environment |= S3_KEYS | {"MLFLOW_S3_ENDPOINT_URL": s3}
        database = f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}"
        self._options = [f"--port={port}", database, *files]

    def command(self) -> list[str]:
        server = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", "--workers=1"]
        return [*server, *self._options]

    def answers(self) -> bool:
        return is_healthy(f"{self.address}/health")


class S3(ProcessServer):
    """A server of S3 with one bucket: moto, which keeps the files in its memory.

    It accepts any key; a proxy before it may refuse them.
    """

    port: Final = 9000
    address = f"http://127.0.0.1:{port}"
    bucket: Final = "flbench"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        return is_healthy(f"{self.address}/moto-api/")

    def start(self) -> None:
        super().start()
        request = urllib.request.Request(f"{self.address}/{self.bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
