"""The start of a process: streams, account, PyTorch's import, and the processes that it starts.

In a container, a process may have closed streams, and a user id without an entry in the list of
accounts and without `HOME`. Libraries raise errors then that mention neither.
"""

import atexit
import gc
import os
import pwd
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Final

from flbench.core.text import redact

SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}
"""Environment in which `python -m` does not search the current folder first.

The current folder may be one of somebody else, and a file `uuid.py` in it would be executed instead
of Python's own module. `flbench.core.parts.find` appends the folder to `sys.path` in a process that
needs a module which the user names.
"""
NEW_OBJECTS: Final = 50_000
"""New objects after which a process of flbench alone searches for garbage; Python's default is 700.
PyTorch and Lightning consist of almost a million objects that stay, which searches visit."""
_NAMES: Final = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where Python's `getpass` looks, in order
is_own = False  # whether this process has no other purpose than flbench


def open_streams() -> None:
    """Open closed standard streams on the null device.

    A file that is opened while a descriptor of a stream is closed gets this descriptor, and
    libraries then write their messages to the file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)
        os.set_inheritable(descriptor, True)  # for child processes
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def complete_account() -> None:
    """Set `LOGNAME` and `HOME` in the environment of a process without an account.

    The home folder is a new folder for temporary files that other users cannot read.
    """
    with suppress(KeyError):
        pwd.getpwuid(os.getuid())
        return
    if not any(os.environ.get(name) for name in _NAMES):
        os.environ["LOGNAME"] = f"uid{os.getuid()}"
    if not os.environ.get("HOME"):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="flbench-home-")


def load_pytorch() -> None:
    """Import PyTorch while the current folder is `/`.

    Libraries of its wheel are linked to `libcuda.so.1`, which the system takes from the current
    folder where no driver is installed. That folder may be one of somebody else.
    """
    here = os.getcwd()
    os.chdir("/")
    try:
        import_module("torch")
    finally:
        os.chdir(here)


def environment(**added: str) -> dict[str, str]:
    """Return the environment of a new process of Python, which its own children inherit.

    Args:
        added: Variables that differ from those of this process.
    """
    return {**os.environ, **SAFE_PATH, **added}


def own_process() -> None:
    """Let this process, which has no other purpose than flbench, search less often for garbage.

    When Python ends, it would search all objects once more, so they are left out of this search.
    """
    global is_own
    is_own = True
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)  # functions that are registered first are called last


@contextmanager
def uncollected() -> Iterator[None]:
    """Within this context, Python does not search for garbage.

    To search what PyTorch and Lightning consist of again and again takes as long as a quarter of
    their import.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def command() -> str:
    """Return how the user started what runs here, as a command of the shell without passwords."""
    return shlex.join(redact(word) for word in sys.argv)
