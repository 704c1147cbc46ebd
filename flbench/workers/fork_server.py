"""Python's fork server of this process, from which its workers are started.

The server imports PyTorch and flbench once, while this process does other things; a fork of it is
ready in a tenth of a second. It imports this file too, with the variable `OWNER`, before it starts
anything. This process imports neither PyTorch nor flbench's other modules for it.
"""

import ctypes
import gc
import os
import signal
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, get_context
from typing import Final

from flbench.core import startup
from flbench.core.control_groups import available_cores
from flbench.core.startup import uncollected
from flbench.workers.nesting import VARIABLE, is_worker

MODULES: Final = (
    *("flbench.engine.worker", "flbench.engine.sequential", "flbench.algorithms"),
    "flbench.jobs.training",
)
"""Modules that the server imports."""
OWNER: Final = "FLBENCH_SERVER_OF"
"""Environment variable with the id of the process that has started the server."""
ENVIRONMENT: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **startup.SAFE_PATH,
    VARIABLE: "1",
}
"""Environment of the server, in which libraries start no threads when they are imported."""
TRACKER: Final = "ignore::UserWarning:multiprocessing.resource_tracker"
"""Filter of warnings. Python deletes what a killed process has left, and need not say so."""
_DEATH_SIGNAL: Final = 1  # number of the option in Linux' `prctl`

context: Final = get_context("forkserver")


def prepare() -> None:
    """Start the server, unless this process has one core, or may start no workers."""
    if available_cores() > 1 and not is_worker():
        with suppress(OSError):  # the system starts no further process
            start()


def start() -> None:
    """Start the server, which begins to import PyTorch, unless it runs.

    Who asks for a worker waits until it has imported everything.
    """
    context.set_forkserver_preload([__name__])
    silent = f"{os.environ.get('PYTHONWARNINGS', '')},{TRACKER}"
    added = {**ENVIRONMENT, "PYTHONWARNINGS": silent, OWNER: str(os.getpid())}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _be_server(owner: int) -> None:
    """Import PyTorch and flbench in the server, which ends with the process that has started it."""
    os.setpgrp()  # Ctrl-C is for the process of the user alone
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != owner:  # it has ended before
        os._exit(1)
    with uncollected():
        startup.load_pytorch()
        for name in MODULES:
            import_module(name)
    gc.freeze()  # workers do not copy the memory of frozen objects


if found := os.environ.pop(OWNER, None):
    _be_server(int(found))
