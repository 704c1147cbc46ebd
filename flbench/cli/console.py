"""Printing text, notes, JSON and tables."""

import json as json_module
import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.measure import Measurement
from rich.table import Table

from flbench.core.text import printable
from flbench.reports.tables import Block
from flbench.reports.terminal import open_console, print_notes

UNLIMITED: Final = 10_000  # columns

notes = print_notes


def text(content: str) -> None:
    """Print text on standard output, without a line break at its end."""
    sys.stdout.write(printable(content))


def line(content: str) -> None:
    """Print one line on standard output. The terminal wraps it, so that paths can be copied."""
    open_console().print(content, soft_wrap=True)


def json(value: object) -> None:
    """Print a value as one JSON document on standard output.

    JSON has no number for infinity and NaN; they are printed as null.
    """
    content = json_module.dumps(_finite(value), indent=1, default=str, allow_nan=False)
    sys.stdout.write(content.replace("\x7f", "\\u007f") + "\n")  # the others are escapes already


def _finite(value: Any) -> Any:
    """Return a value of JSON in which numbers that are not finite are None."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def titled_table(title: str) -> Table:
    """Return an empty table with a title above it."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD)


def whole_table(table: Table) -> None:
    """Print a table, in a pipe or file as wide as its content needs."""
    console = open_console()
    if not console.is_terminal:
        unlimited = console.options.update(width=UNLIMITED)
        console.width = max(console.width, Measurement.get(console, unlimited, table).maximum)
    console.print(table)


def block(content: Block) -> None:
    """Print a table of a report, with its heading and the sentence below the heading."""
    table = Table(box=SIMPLE_HEAD)
    for column, name in enumerate(content.header):
        table.add_column(name, justify="left" if column in content.texts else "right")
    for row in content.rows:
        table.add_row(*row)
    line(content.title)
    if content.about:
        line(content.about)
    open_console().print(table)
