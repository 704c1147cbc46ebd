"""Forks of the test process, which has imported PyTorch and Lightning already.

A new interpreter takes seconds to import them. A test of what a process prints, or of a process
that is killed, needs none. Tests of how flbench is started, and those whose process uses Ray, start
a real one.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = get_context("fork")


class Fork:
    """Calls a function in a fork. Its streams are files, and its exit code is what it returns.

    Args:
        folder: Folder for the files `out` and `err`.
        function: The function; None counts as exit code 0.
        arguments: Its arguments.

    Attributes:
        process: The process.
    """

    def __init__(self, folder: Path, function: Callable[..., int | None], *arguments: Any) -> None:
        self._out, self._err = folder / "out", folder / "err"
        target = (function, arguments, self._out, self._err)
        self.process = CONTEXT.Process(target=_call, args=target)
        self.process.start()

    @property
    def out(self) -> str:
        """What the function has written to standard output so far."""
        return self._out.read_text("utf-8") if self._out.exists() else ""

    @property
    def err(self) -> str:
        """What the function has written to standard error so far."""
        return self._err.read_text("utf-8") if self._err.exists() else ""

    def is_running(self) -> bool:
        """Whether the function has not returned yet."""
        return self.process.is_alive()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        os.kill(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.join()

    def wait(self, seconds: float = 240) -> int:
        """Return the exit code, or the negative number of the signal that ended the process."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            self.kill()
            raise AssertionError(f"the process did not end within {seconds} s")
        return code


def _call(function: Callable[..., int | None], arguments: Any, out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(k, "w", buffering=1, closefd=False) for k in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 1
    try:
        code = function(*arguments) or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 -- of any kind, as an interpreter does
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
