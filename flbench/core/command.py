"""The command by which the user has started what runs in this process."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flbench.core.text import redact

_started_by: ContextVar[str | None] = ContextVar("started_by", default=None)


def command() -> str:
    """Return how the user started what runs here, as a command of the shell without passwords.

    In a worker process it is how the process was started for which the worker works; see
    `started_by`.
    """
    return _started_by.get() or shlex.join(redact(word) for word in sys.argv)


@contextmanager
def started_by(text: str | None) -> Iterator[None]:
    """Return a context manager in which `command` returns a text.

    Args:
        text: The command of the process that a worker process works for; None for this process.

    >>> with started_by("flbench compare hfcd ft"):
    ...     command()
    'flbench compare hfcd ft'
    """
    token = _started_by.set(text)
    try:
        yield
    finally:
        _started_by.reset(token)
