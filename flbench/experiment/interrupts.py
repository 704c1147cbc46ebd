"""Ctrl-C and SIGTERM: allowed while clients train, held back while state and files change."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Interrupts:
    """A context in which signals raise KeyboardInterrupt in `allowed()` and at `check()` only.

    So an interrupted round has changed nothing, and one that has begun to store its results ends
    first. Outside the main thread signals do not arrive, and nothing happens.
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
        """Let signals interrupt the block."""
        self.check()
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was held back."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            raise KeyboardInterrupt
        self._pending = True
