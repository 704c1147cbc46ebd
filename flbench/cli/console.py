"""Printing text, notes, JSON and tables."""

import json as json_module
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flbench.core.text import printable
from flbench.reports.render import finite
from flbench.reports.terminal import open_console, print_notes

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
    content = json_module.dumps(finite(value), indent=1, default=str, allow_nan=False)
    sys.stdout.write(content.replace("\x7f", "\\u007f") + "\n")  # the others are escapes already


def plan(tree: Mapping[str, Any], sentences: Sequence[str], *, as_json: bool) -> None:
    """Print what a command will train and cost, as JSON or in sentences."""
    if as_json:
        json(tree)
    for sentence in () if as_json else sentences:
        line(sentence)
