"""Calls of the command line in worker processes that may hang or die."""

import contextlib
import io
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

MEMORY: Final = 8 * 2**30
CONTEXT: Final = get_context("spawn")  # a fork of a process with PyTorch's threads can hang


@dataclass(frozen=True)
class Call:
    """A call of `flbench`.

    Attributes:
        title: What is tried, for the report.
        arguments: Arguments of the command line.
        folder: Working directory.
        is_wrong: Whether the input must be refused. Otherwise it may be accepted too.
    """

    title: str
    arguments: Sequence[str]
    folder: Path
    is_wrong: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        call: The call.
        code: Exit code; None if the call was stopped, or its process died.
        out: Standard output.
        err: Standard error, with the traceback of an exception that left the command line.
        seconds: Wall-clock time.
        is_stopped: Whether the call exceeded its time limit.
    """

    call: Call
    code: int | None
    out: str
    err: str
    seconds: float
    is_stopped: bool = False


def outcomes(calls: Iterable[Call], *, workers: int, limit: float) -> Iterator[Outcome]:
    """Yield the outcome of each call, in the order in which the calls end.

    Args:
        calls: The calls. Each one is taken from the iterable when a worker is free.
        workers: Number of processes.
        limit: Seconds after which a call is stopped, together with its worker.
    """
    left = iter(calls)
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(workers):
            worker = _Worker()
            stack.callback(worker.end)
            if (call := next(left, None)) is not None:
                worker.begin(call)
                running.append(worker)
        while running:
            wait([worker.connection for worker in running], timeout=0.2)
            for worker in list(running):
                outcome = worker.outcome(limit)
                if outcome is None:
                    continue
                yield outcome
                if (call := next(left, None)) is None:
                    running.remove(worker)
                else:
                    worker.begin(call)


@dataclass
class _Worker:
    """A process that makes one call after the other. It is replaced after a hang or a death."""

    process: Any = None
    connection: Connection = field(init=False)
    call: Call = field(init=False)
    began: float = 0.0

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.connection, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.connection.recv()  # the worker has imported what it needs

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def begin(self, call: Call) -> None:
        self.call, self.began = call, time.monotonic()
        self.connection.send((list(call.arguments), str(call.folder)))

    def outcome(self, limit: float) -> Outcome | None:
        """Return the outcome of the call; None if it is still running."""
        seconds = time.monotonic() - self.began
        if self.connection.poll():
            try:
                code, out, err = self.connection.recv()
                return Outcome(self.call, code, out, err, seconds)
            except EOFError:
                self.process.join()
                died = f"the process died with exit code {self.process.exitcode}"
                self._start()
                return Outcome(self.call, None, "", died, seconds)
        if seconds < limit:
            return None
        self.end()
        self._start()
        return Outcome(self.call, None, "", "", seconds, is_stopped=True)


def _serve(connection: Connection) -> None:
    """Make the calls that arrive, until the connection is closed."""
    # A device without an end must not take the machine's memory before the call is stopped.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ |= {"COLUMNS": "120", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    from flbench.cli import app
    from flbench.experiment import lifecycle  # noqa: F401  (not part of the first call's time)
    from flbench.tracking import mlflow_store

    mlflow_store.installed = lambda: False
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            arguments, folder = connection.recv()
            os.chdir(folder)
            # As strict as the streams of a terminal: text that is not UTF-8 cannot be printed.
            out = io.TextIOWrapper(io.BytesIO(), "utf-8")
            err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = app.main(arguments)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc(file=sys.stderr)
                    code = 1
            connection.send((code, _text(out), _text(err)))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
