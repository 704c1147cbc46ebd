"""Whether the user has allowed that code runs which a file names; see `flbench.config.trust`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[bool] = ContextVar("run_code", default=False)


@contextmanager
def run_code(allowed: bool) -> Iterator[None]:
    """Return a context manager in which code that files name may run.

    Args:
        allowed: Whether the user has allowed it; otherwise nothing changes.

    >>> with run_code(True):
    ...     is_allowed()
    True
    >>> is_allowed()
    False
    """
    token = _allowed.set(allowed or _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


def allow() -> None:
    """Let code that files name run until the end of the enclosing `run_code`."""
    _allowed.set(True)


def is_allowed() -> bool:
    """Return whether code that files name may run."""
    return _allowed.get()
