"""Ctrl-C and SIGTERM interrupt training and evaluation, but not changes of state and files."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Context manager that delays SIGINT and SIGTERM to places where nothing is half written.

    Inside the context a signal raises KeyboardInterrupt at once within an `allowed()` block.
    Anywhere else it is recorded, and the next `check()` or `allowed()` raises KeyboardInterrupt. An
    interrupted round has therefore changed nothing, and a round that has begun to store its results
    is completed first. Python delivers signals to the main thread alone; in other threads the
    context has no effect.
    """

    def __init__(self) -> None:
        self._open = False
        self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._arrived)
            except ValueError:
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let signals interrupt the block.

        Raises:
            KeyboardInterrupt: A signal arrived before or within the block.
        """
        self.check()
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt of a signal that was delayed, if there is one."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        # Python ignores what is raised within a `__del__` of any library, where this function may
        # be called. The signal is then still to be handled by the next `check`.
        self._pending = True
        if self._open:
            raise KeyboardInterrupt
