"""Whether the user has allowed that code runs which a file names; see `flbench.config.trust`."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[bool] = ContextVar("run_code", default=False)

# Within `run_code`: texts of the files that say what is run, and those of them that are code which
# has been found to be this user's own. None outside of it.
_texts: ContextVar[tuple[frozenset[str], frozenset[str]] | None] = ContextVar("texts", default=None)


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
    texts = _texts.set(_texts.get() or (frozenset(), frozenset()))
    try:
        yield
    finally:
        _texts.reset(texts)
        _allowed.reset(token)


def allow() -> None:
    """Let code that files name run until the end of the enclosing `run_code`."""
    _allowed.set(True)


def is_allowed() -> bool:
    """Return whether code that files name may run."""
    return _allowed.get()


def note_texts(texts: Iterable[str], own: Iterable[str]) -> None:
    """Note what a file contains that says what is run, until the end of the enclosing `run_code`.

    Args:
        texts: The texts of the file.
        own: Those that are import paths of code which may run.
    """
    noted = _texts.get()
    if noted is not None:
        _texts.set((noted[0] | frozenset(texts), noted[1] | frozenset(own)))


def is_unasked(path: str) -> bool:
    """Return whether an import path is in the text of a file, and nobody has asked about it.

    It may be a part of a longer text. A path that is in no file comes from the user.

    Args:
        path: `package.module:name`.

    >>> with run_code(False):
    ...     note_texts(["[{name: m:f}]", "m:g"], own=["m:g"])
    ...     [is_unasked(path) for path in ("m:f", "m:g", "m:h")]
    [True, False, False]
    """
    if is_allowed():
        return False
    texts, own = _texts.get() or (frozenset(), frozenset())
    if path in own:
        return False
    whole = re.compile(rf"(?<![\w.]){re.escape(path)}(?![\w.])")
    return any(path in text and whole.search(text) for text in texts)
