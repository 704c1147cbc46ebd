"""Ends what is left of a private cluster of Ray after the process that started it was killed.

Ray's servers end with that process. Processes that they have just started look for their servers
for a minute and longer. This file is a program of its own, which imports the standard library
alone: it waits for the end of its standard input, which that process holds open, and ends all
processes of Ray whose environment has the token of the cluster, or which write to its folders.
Ray's agents give themselves titles, which take the place of their environment.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

TOKEN = "RAY_AUTH_TOKEN"  # the name of the variable
SELF_SECONDS = 3.0  # in which processes of Ray may end by themselves
LONGEST = 120.0  # seconds of the search
PERIOD = 0.5  # seconds between two looks
MARKS = (b"ray::", b"/ray/")
"""What command lines of Ray's processes contain. A process of the user may have the token too."""


def main() -> None:
    """Wait for the end of the process that holds the input open, and end what is left.

    The arguments of the program are the folders of the cluster, which are deleted.
    """
    entry = f"{TOKEN}={os.environ[TOKEN]}".encode()
    sys.stdin.buffer.read()
    time.sleep(SELF_SECONDS)
    begin, silent = time.monotonic(), 0
    while silent < 3 and time.monotonic() - begin < LONGEST:  # one may be between fork and exec
        processes = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        found = [pid for pid in processes if is_left(pid, entry, sys.argv[1:])]
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        silent = 0 if found else silent + 1
        time.sleep(PERIOD)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


def is_left(pid: int, entry: bytes, folders: list[str]) -> bool:
    """Return whether a process is one of the cluster's.

    Args:
        pid: Id of the process.
        entry: `NAME=VALUE`, which only processes of the cluster have in their environment.
        folders: Folders of the cluster, as the system names them.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            command = line.read()
        if not any(mark in command for mark in MARKS):
            return False
        with open(f"/proc/{pid}/environ", "rb") as environment:
            if entry in environment.read().split(b"\0"):
                return True
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it was closed meanwhile
                file = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if any(file.startswith(f"{folder}/") for folder in folders):
                    return True
    except OSError:  # it has ended, or belongs to another user
        return False
    return False


if __name__ == "__main__":
    main()
