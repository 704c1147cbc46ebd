"""Output on a terminal, or where there is none."""

import sys

from rich.console import Console

NARROW = 120  # columns where the output is no terminal


def open_console(*, errors: bool = False) -> Console:
    """Return a console on standard output or error, of a fixed width where that is no terminal."""
    stream = sys.stderr if errors else sys.stdout
    return Console(
        file=stream, width=None if stream.isatty() else NARROW, highlight=False, markup=False
    )


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
