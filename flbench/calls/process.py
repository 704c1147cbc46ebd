"""The state of the calling process, which a run changes and which is restored after it."""

import atexit
import random
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch

from flbench.core import startup

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LAST_SECONDS: Final = 5.0  # longest wait for a thread that is ending
THREADS: Final = Path("/proc/self/task")  # Linux lists the threads of this process here

_waited_for: Final[set[int]] = set()  # threads for which this process waits at its end


@contextmanager
def preserved() -> Iterator[None]:
    """Context manager that restores what a run changes in this process.

    These are PyTorch's number of threads, the states of the random generators of PyTorch, NumPy and
    Python, PyTorch's choice of deterministic kernels and of TF32, the handlers of SIGINT and
    SIGTERM, and the functions and filters of `warnings`.

    What the process has chosen for the type and device of new tensors, for gradients and for
    autocast does not hold inside, as it does not in workers and on the command line.
    """
    startup.complete_account()
    threads = torch.get_num_threads()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    deterministic = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    kernels = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if is_main else {}
    if not is_main and (thread := threading.get_native_id()) not in _waited_for:
        _waited_for.add(thread)
        atexit.register(_wait_for, thread)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with warnings.catch_warnings(), ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":  # such a context slows all functions
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = kernels
        for number, handler in handlers.items():
            if handler is not None:  # None: a handler that Python did not install
                signal.signal(number, handler)


def _wait_for(thread: int) -> None:
    """Wait until the system has ended a thread that has ended for Python.

    PyTorch keeps an object of Python for each thread that has computed gradients, and frees it when
    the system ends the thread. If Python is ending at that time, the process is aborted ("terminate
    called without an active exception"). So a script that trains in a thread, joins it and ends at
    once could have the exit code 134.

    Args:
        thread: Number that the system has given to the thread.
    """
    end = time.monotonic() + LAST_SECONDS
    while (THREADS / str(thread)).exists() and time.monotonic() < end:
        if thread in {one.native_id for one in threading.enumerate()}:
            return  # a daemon thread that still works, or a later thread of the same number
        time.sleep(0.002)
