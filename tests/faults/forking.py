"""Runs the command line in forks of a process that has imported everything, and kills them.

PyTorch and Lightning take seconds to import. A fork has them at once, so that a kill and a resume
take about as long as the rounds that they lose and repeat.
"""

import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = get_context("spawn")
LIMIT: Final = 60.0  # seconds of a call that is not killed earlier
PHASES: Final = (
    "preparation",
    "between rounds",
    "training",
    "aggregation",
    "evaluation",
    "metrics",
    "checkpoint",
    "final files",
    "tables and the end",
)


@dataclass(frozen=True)
class Kill:
    """When SIGKILL is sent; at most one of the two is given.

    Attributes:
        seconds: Seconds after the fork.
        change: Number of a change of the run's files, counted from 1: opened for writing, flushed,
            renamed, removed, or a folder made. The process is killed before it.
    """

    seconds: float | None = None
    change: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
        code: Exit code; the negative number of the signal that ended the process.
        phase: What the process was doing, one of `PHASES`.
        changes: Number of changes of the run's files.
        seconds: Wall-clock time.
        out: Standard output.
        err: Standard error.
        is_stopped: Whether the call exceeded its time limit.
    """

    code: int
    phase: str
    changes: int
    seconds: float
    out: str
    err: str
    is_stopped: bool = False

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL ended the process."""
        return self.code == -signal.SIGKILL and not self.is_stopped


class Forks:
    """A process that forks for each call of the command line. It has one thread, so forks are safe.

    Attributes:
        threads: Number of its threads, without the one of pyarrow's allocator.
    """

    def __init__(self) -> None:
        self._connection, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self.threads: int = self._connection.recv()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join()

    def call(self, arguments: Sequence[str], folder: Path, kill: Kill = Kill()) -> Ended:
        """Call `flbench`.

        Args:
            arguments: Arguments of the command line.
            folder: Existing folder for what the call prints, and for the run folders. It is the
                working directory.
            kill: When to kill the process.
        """
        self._connection.send((list(arguments), str(folder), kill))
        return self._connection.recv()


class _Shared:
    """Phase and number of changes of a fork, in memory that outlives it."""

    def __init__(self) -> None:
        self._numbers = (ctypes.c_int64 * 2).from_buffer(mmap.mmap(-1, 16))

    @property
    def phase(self) -> int:
        return self._numbers[0]

    @phase.setter
    def phase(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def changes(self) -> int:
        return self._numbers[1]

    @changes.setter
    def changes(self, number: int) -> None:
        self._numbers[1] = number


def _serve(connection: Any) -> None:
    """Fork for the calls that arrive, until the connection is closed."""
    os.environ |= {
        "COLUMNS": "120",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    from flbench.algorithms import ALGORITHMS

    ALGORITHMS.load()
    for name in _imported_by_runs():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    tasks = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    # The allocator of pyarrow has a thread of its own, and handlers that make it safe to fork.
    connection.send(len([name for name in tasks if name != "jemalloc_bg_thd"]))
    while True:
        try:
            arguments, folder, kill = connection.recv()
        except EOFError:
            return
        connection.send(_forked(arguments, Path(folder), kill))


def _imported_by_runs() -> list[str]:
    """Return the modules that runs import, in the order in which a fork has imported them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with tempfile.TemporaryDirectory() as folder:
            os.close(1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.chdir(folder)
            from flbench.cli import app
            from flbench.testing import SMALL

            for engine in ("sequential", "vectorized"):
                app.main(["run", "--algo", "fedavg", *SMALL, f"engine.name={engine}"])
            with os.fdopen(writing, "w") as file:
                file.write("\n".join(sys.modules))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        names = file.read().split()
    os.waitpid(child, 0)
    return [name for name in names if name not in sys.modules]


def _forked(arguments: list[str], folder: Path, kill: Kill) -> Ended:
    """Fork, call the command line there, and kill it in time."""
    for name in ("out.txt", "err.txt"):
        (folder / name).write_text("")
    shared, begin = _Shared(), time.monotonic()
    child = os.fork()
    if child == 0:
        _child(arguments, folder, kill.change, shared)
    handle = os.pidfd_open(child)
    limit = LIMIT if kill.seconds is None else kill.seconds
    # The handle becomes readable when the process ends, and refers to no other process.
    is_late = not select.select([handle], [], [], limit)[0]
    if is_late:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(handle)
    _end_session(child)
    return Ended(
        os.waitstatus_to_exitcode(status),
        PHASES[shared.phase],
        shared.changes,
        time.monotonic() - begin,
        (folder / "out.txt").read_text(),
        (folder / "err.txt").read_text(),
        is_stopped=is_late and kill.seconds is None,
    )


def _end_session(session: int) -> None:
    """End what a killed process has left behind, such as Ray's servers."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == session:
                os.kill(int(folder.name), signal.SIGKILL)


def _child(arguments: list[str], folder: Path, change: int | None, shared: _Shared) -> None:
    """Call the command line and end the process."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((1, "out.txt"), (2, "err.txt")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
        from flbench.cli import app

        _observe_phases(shared)
        _observe_changes(str(folder), change, shared)
        code = app.main(arguments)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _observe_phases(shared: _Shared) -> None:
    """Write down what the process is doing; the functions themselves stay what they are."""
    from flbench.cli import run
    from flbench.experiment import finalize, loop, rounds
    from flbench.experiment.evaluate import Evaluator
    from flbench.experiment.run_folder import RunFolder

    def observed(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            before, shared.phase = shared.phase, PHASES.index(phase)
            try:
                return function(*args, **options)
            finally:
                if phase != PHASES[-1]:
                    shared.phase = before

        return call

    for owner, name, phase in (
        (loop.FederatedLoop, "run", "between rounds"),
        (rounds, "train", "training"),
        (rounds, "exchange", "aggregation"),
        (Evaluator, "evaluate", "evaluation"),
        (RunFolder, "add_metrics", "metrics"),
        (RunFolder, "save_state", "checkpoint"),
        (finalize, "write", "final files"),
        (run, "_finish", "tables and the end"),
    ):
        setattr(owner, name, observed(phase, getattr(owner, name)))


def _observe_changes(folder: str, change: int | None, shared: _Shared) -> None:
    """Count changes of the files below a folder, and kill the process before one of them."""

    def count() -> None:
        shared.changes += 1
        if shared.changes == change:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.mkdir", "os.remove"):
            return
        path = args[0]
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(folder):
            return
        # `args` of open: path, mode, flags. The mode is None for `os.open`.
        if event != "open" or (args[1] is not None and set(args[1]) & set("wax+")):
            count()

    flush = os.fsync

    def counted_flush(handle: Any) -> None:
        count()
        flush(handle)

    os.fsync = counted_flush
    sys.addaudithook(hook)
