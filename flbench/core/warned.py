"""Warnings of code of the user: shown once, with the client and the round in which it was called.

Engines call code of the user once for each client, in several processes. A warning of it has a
place, such as `client 3 in round 7`, which processes send with the warning.
"""

import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

Place = Callable[[], str]
Key = tuple[type[Warning], str, str, int]

_PLACE: Final[ContextVar[Place | None]] = ContextVar("place", default=None)


class Warned(NamedTuple):
    """A warning that was recorded, to be issued in another process.

    Attributes:
        category: Its class.
        text: Its text.
        file: The file of the code that it names.
        line: The line in this file.
        place: Where it was issued; None if no place was known.
    """

    category: type[Warning]
    text: str
    file: str
    line: int
    place: str | None

    @property
    def key(self) -> Key:
        """Class, text, file and line: what warnings of different places have in common."""
        return self[:-1]

    def issue(self) -> None:
        """Issue the warning in this process, where its filters decide about it.

        Raises:
            Warning: The filters say that such a warning is an error.
        """
        modules = (one for one in list(sys.modules.values()) if _file_of(one) == self.file)
        module = next(modules, None)
        registry = {} if module is None else vars(module).setdefault("__warningregistry__", {})
        name = None if module is None else module.__name__
        with at(None if self.place is None else lambda: str(self.place)):
            warnings.warn_explicit(self.text, self.category, self.file, self.line, name, registry)


@contextmanager
def at(place: Place | None) -> Iterator[None]:
    """Context manager in which warnings have a place.

    Args:
        place: Function that returns the place, such as `client 3 in round 7`; None for warnings
            that are not about a client.
    """
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


@contextmanager
def with_places() -> Iterator[None]:
    """Context manager in which the texts of warnings name their places.

    A warning that has a place is shown once: further ones with the same text and line, of other
    clients and rounds, are not shown. Python's filters see the text without the place.
    """
    show, seen = warnings.showwarning, set[Key]()

    def show_once(one: Warned) -> None:
        if one.place is None:
            show(one.text, one.category, one.file, one.line)
        elif one.key not in seen:
            seen.add(one.key)
            show(f"{one.text} ({one.place})", one.category, one.file, one.line)

    with _handled_by(show_once):
        yield


@contextmanager
def recorded() -> Iterator[list[Warned]]:
    """Context manager that records warnings in place of showing them.

    Yields:
        The warnings, the first one of each text and line.
    """
    found, seen = list[Warned](), set[Key]()

    def record(one: Warned) -> None:
        if one.key not in seen:
            seen.add(one.key)
            found.append(one._replace(category=_portable(one.category)))

    with _handled_by(record):
        yield found


@contextmanager
def _handled_by(handle: Callable[[Warned], object]) -> Iterator[None]:
    """Context manager in which a function gets the warnings that Python would show."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        handle(Warned(category, str(message), filename, lineno, _here()))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def first_of_each(warned: Iterable[Warned]) -> list[Warned]:
    """Return the first warning of each text and line, such as those of several processes.

    Args:
        warned: The warnings.
    """
    found: dict[Key, Warned] = {}
    for one in warned:
        found.setdefault(one.key, one)
    return list(found.values())


def _here() -> str | None:
    """Return the place of a warning that is issued now, if it has one."""
    place = _PLACE.get()
    return None if place is None else place()


def _file_of(module: Any) -> str | None:
    """Return the file of a module, if it has one."""
    return vars(module).get("__file__") if hasattr(module, "__dict__") else None


def _portable(category: type[Warning]) -> type[Warning]:
    """Return a class of warnings that another process can import: the given one or UserWarning."""
    try:
        pickle.dumps(category)
    except Exception:  # noqa: BLE001
        return UserWarning
    return category
