"""Python's fork server of this process, from which its workers are started.

The server imports PyTorch and flbench once, while this process does other things; a fork of it is
ready in a tenth of a second. It imports this file too, with the variable `IS_READY`, before it
starts anything. This process imports neither PyTorch nor flbench's other modules for it.
"""

import ctypes
import gc
import os
import signal
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, get_context
from typing import IO, Final

from flbench.core import startup
from flbench.core.startup import uncollected
from flbench.workers import cores
from flbench.workers.nesting import VARIABLE, reason_against_workers

MODULES: Final = (
    *("flbench.engine.worker", "flbench.engine.sequential", "flbench.algorithms"),
    "flbench.jobs.training",
)
"""Modules that the server imports."""
IS_READY: Final = "FLBENCH_SERVER_IS_READY"
"""Environment variable with the path of a file of this process. The server writes a byte to it when
it has imported everything."""
ENVIRONMENT: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **startup.SAFE_PATH,
    VARIABLE: "1",
}
"""Environment of the server, in which libraries start no threads when they are imported."""
TRACKER: Final = "ignore::UserWarning:multiprocessing.resource_tracker"
"""Filter of warnings. Python deletes what a killed process has left, and need not say so."""
START_SECONDS: Final = 30.0
"""Seconds after which the server is taken as ready. One that code of the user has started before
says nothing, and its workers import PyTorch themselves."""
_DEATH_SIGNAL: Final = 1  # number of the option in Linux' `prctl`

context: Final = get_context("forkserver")


class _Started:
    """The server of this process.

    Attributes:
        ready: The file to which it writes; None if it was not started.
        since: Time when it was started.
    """

    ready: IO[bytes] | None = None
    since = 0.0


def prepare() -> None:
    """Start the server, unless this process has one core, or may start no workers."""
    if cores.available() > 1 and reason_against_workers() is None:
        with suppress(OSError):  # the system starts no further process
            start()


def start() -> None:
    """Start the server, which begins to import PyTorch, unless it runs."""
    if _Started.ready is None:
        _Started.ready, _Started.since = (
            os.fdopen(os.memfd_create("flbench"), "wb"),
            time.monotonic(),
        )
        context.set_forkserver_preload([__name__])
    silent = f"{os.environ.get('PYTHONWARNINGS', '')},{TRACKER}"
    added = {
        **ENVIRONMENT,
        "PYTHONWARNINGS": silent,
        IS_READY: f"/proc/{os.getpid()}/fd/{_Started.ready.fileno()}",
    }
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def is_ready() -> bool:
    """Return whether the server starts a worker at once. Until then, who asks for one waits."""
    if _Started.ready is None:
        return False
    has_said = os.fstat(_Started.ready.fileno()).st_size > 0
    return has_said or time.monotonic() - _Started.since > START_SECONDS


def _be_server(ready: str) -> None:
    """Import PyTorch and flbench in the server, which ends with the process that has started it.

    Args:
        ready: Path of a file of that process; see `IS_READY`.
    """
    os.setpgrp()  # Ctrl-C is for the process of the user alone
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if not os.path.exists(ready):  # it has ended before
        os._exit(1)
    with uncollected():
        startup.load_pytorch()
        for name in MODULES:
            import_module(name)
    gc.freeze()  # workers do not copy the memory of frozen objects
    with suppress(OSError), open(ready, "wb") as file:
        file.write(b"1")


if path := os.environ.pop(IS_READY, None):
    _be_server(path)
