"""How often Python searches for garbage: for objects that only refer to each other.

PyTorch and Lightning consist of almost a million objects that stay. To search them again and again
takes a second of each command.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEW_OBJECTS: Final = 10_000
"""New objects after which a process of flbench alone searches; Python's default is 700."""


def own_process() -> None:
    """Let this process, which has no other purpose than flbench, search less often from now on.

    What `uncollected` contexts import is left out of all searches, and so is everything when Python
    ends, where it would search all objects once more.
    """
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)  # functions that are registered first are called last


@contextmanager
def uncollected() -> Iterator[None]:
    """Within this context, Python does not search for garbage.

    Imports make many objects that stay. PyTorch and Lightning make almost a million, and to search
    them again and again takes as long as a quarter of their import.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_threshold()[0] == NEW_OBJECTS:  # the process is flbench's own
            gc.freeze()
        if was_enabled:
            gc.enable()
