"""Consoles for output on a terminal or in a pipe."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flbench.core.printable import printable

NARROW = 120  # columns of an output that is not a terminal


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
    return SafeConsole(
        file=stream,
        width=None if stream.isatty() else NARROW,
        highlight=False,
        markup=False,
        emoji=False,
    )


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
