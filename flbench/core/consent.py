"""Whether the user has allowed that code runs which a file names; see `flbench.config.trust`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[bool] = ContextVar("run_code", default=False)
_refused: ContextVar[frozenset[str]] = ContextVar("refused", default=frozenset())


@contextmanager
def run_code(allowed: bool) -> Iterator[None]:
    """Return a context manager in which code that files name may run, if the user allows it.

    >>> with run_code(True):
    ...     is_allowed()
    True
    >>> is_allowed()
    False
    """
    tokens = _allowed.set(allowed or _allowed.get()), _refused.set(_refused.get())
    try:
        yield
    finally:
        _allowed.reset(tokens[0])
        _refused.reset(tokens[1])


def allow() -> None:
    """Let code that files name run until the end of the enclosing `run_code`."""
    _allowed.set(True)


def is_allowed() -> bool:
    """Return whether code that files name may run."""
    return _allowed.get()


def refuse(paths: Iterable[str]) -> None:
    """Let `flbench.core.parts.find` import none of these paths in the enclosing `run_code`."""
    _refused.set(_refused.get() | frozenset(paths))


def is_refused(path: str) -> bool:
    """Return whether an import path comes from a file, and nobody has asked about it."""
    return path in _refused.get() and not is_allowed()
