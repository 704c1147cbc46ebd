"""Consoles for output on a terminal or in a pipe."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from flbench.core.text import printable

NARROW = 120  # columns of an output that is not a terminal
SILENCE: Final = 20.0
"""Seconds without a line after which users ask whether a process still works."""
SHARE: Final = 0.02
"""Share of the time so far that a long training may be silent. So the log of a day is short."""
LOOK: Final = 1.0  # seconds between two looks whether a silence is too long


class SafeConsole(Console):
    """A console that prints every string, also in tables, without control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as what the console prints."""
        return super().render_str(printable(text), **options)


def open_console(*, errors: bool = False) -> Console:
    """Return a console on standard output.

    Names in what it prints may come from users' files: markup such as `[red]` and emoji codes such
    as `:x:` are printed as they are, and control characters as escapes. An output that is not a
    terminal gets a fixed width, so that tables look the same everywhere.

    Args:
        errors: Whether to write to standard error instead.
    """
    stream = sys.stderr if errors else sys.stdout
    is_shown = stream.isatty() or Console().is_jupyter
    return SafeConsole(
        file=stream,
        # Rich takes a file for a terminal if FORCE_COLOR is set, as in the processes of notebooks.
        force_terminal=None if is_shown else False,
        width=None if stream.isatty() else NARROW,
        highlight=False,
        markup=False,
        emoji=False,
    )


class Silence:
    """Tells when an output that is not a terminal has been silent for too long.

    That is so after `SILENCE` seconds, and in a long training after `SHARE` of the time so far.
    """

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._is_over = Event()

    def end(self) -> None:
        """Note that a line is printed."""
        self._last = time.monotonic()

    def is_long(self, more: float = 0.0) -> bool:
        """Return whether it is time for a line.

        Args:
            more: Further seconds of silence.
        """
        now = time.monotonic()
        return now - self._last >= max(SILENCE, SHARE * (now - self._began)) + more

    def close(self) -> None:
        """End `broken_by` before the end of its block: nothing is printed any more."""
        self._is_over.set()

    @contextmanager
    def broken_by(self, tell: Callable[[], object], more: float = 0.0) -> Iterator[None]:
        """Context manager with a thread that ends each silence that is too long.

        Args:
            tell: Function that prints a line. It calls `end`.
            more: Further seconds that the thread waits for a line.
        """

        def look() -> None:
            while not self._is_over.wait(LOOK):
                if self.is_long(more):
                    tell()

        thread = Thread(target=look, daemon=True, name="silence")
        thread.start()
        try:
            yield
        finally:
            self.close()
            thread.join()


@contextmanager
def told(doing: str, tell: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """Context manager that tells every `SILENCE` seconds what is done in it.

    Args:
        doing: What is done, as the beginning of a sentence.
        tell: Function that gets sentences for the user.
    """
    silence, began = Silence(), time.monotonic()

    def say() -> None:
        silence.end()
        tell([f"{doing} ({time.monotonic() - began:.0f} s so far)."])

    with silence.broken_by(say):
        yield


def print_notes(sentences: Sequence[str]) -> None:
    """Print sentences that the user must know on standard error, as `note: ...`."""
    for sentence in sentences:
        open_console(errors=True).print(f"note: {sentence}", soft_wrap=True)


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(12.34), duration(60), duration(3600)
    ('12.3 s', '1 min 0 s', '1 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
