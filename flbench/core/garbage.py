"""When Python searches for garbage, that is, for unreachable objects that refer to each other.

PyTorch and Lightning consist of almost a million objects that stay, which each search visits.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEW_OBJECTS: Final = 10_000
"""New objects after which a process of flbench alone searches; Python's default is 700."""


class Process:
    """This process.

    Attributes:
        is_own: Whether it has no other purpose than flbench.
    """

    is_own = False


def own_process() -> None:
    """Let this process, which has no other purpose than flbench, search less often from now on.

    At the end of each `uncollected` context, all objects of the process are left out of later
    searches, and so are they when Python ends, where it would search all of them once more.
    """
    Process.is_own = True
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
        if Process.is_own:
            gc.freeze()
        if was_enabled:
            gc.enable()
