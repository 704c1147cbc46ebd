"""Objects that are sent to workers, which find the modules of the user where the sender does."""

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flbench.core.parts import load_sources
from flbench.core.text import redact
from flbench.workers.nesting import is_worker


def portable(thing: Any, dumps: Callable[[Any], bytes]) -> Any:
    """Return an object which arrives as `thing` in another process that unpickles it.

    Modules of the user are found in a worker where they are found here: it searches the folders of
    this process in their order, and then its own. It works in the folder of this one, where there
    is such a folder, and takes over its command line, without passwords.

    Args:
        thing: What is sent.
        dumps: Function that pickles it.
    """
    folders = [os.path.abspath(one) for one in sys.path]
    return _Portable(folders, os.getcwd(), [redact(word) for word in sys.argv], dumps(thing))


class _Portable:
    """Pickles as what `_arrived` returns for some arguments."""

    def __init__(self, *sent: Any) -> None:
        self._sent = sent

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrived, self._sent


def _arrived(folders: list[str], folder: str, command: list[str], content: bytes) -> Any:
    """Return the object that another process has sent, in whose folder a worker works."""
    if is_worker():  # the process of the run may unpickle it, too
        sys.path[:] = [*folders, *(one for one in sys.path if os.path.abspath(one) not in folders)]
        sys.argv[:] = command
        with suppress(OSError):  # another machine of a cluster may lack it
            os.chdir(folder)
    load_sources()
    return pickle.loads(content)
