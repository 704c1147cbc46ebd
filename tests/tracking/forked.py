"""The mirror process as a fork of the test process.

A fork has imported MLflow, which takes a new interpreter seconds. It reads its pipe, writes its log
and holds its lock as a new process does. test_mirror.py starts real mirrors too.
"""

import os
import subprocess
import sys
from multiprocessing import get_context
from typing import IO, Final

from flbench.tracking import follow

CONTEXT: Final = get_context("fork")
PIPE: Final = subprocess.PIPE
TimeoutExpired = subprocess.TimeoutExpired


class Popen:
    """What `mirror` needs of `subprocess.Popen`."""

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_) -> None:
        assert command[1:3] == ["-m", "flbench.tracking.follow"]
        reading, writing = os.pipe()
        arguments = (command[3:], env, reading, writing, stdout.fileno())
        self._process = CONTEXT.Process(target=_follow, args=arguments)
        self._process.start()
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb")

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("the mirror", timeout)
        return self._process.exitcode


def _follow(
    arguments: list[str], env: dict[str, str], reading: int, writing: int, log: int
) -> None:
    os.setsid()
    os.close(writing)
    for source, target in ((reading, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.update(env)
    sys.exit(follow.main(arguments))
