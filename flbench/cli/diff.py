"""`flbench diff`: what differs between two runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flbench.cli import console
from flbench.core.text import one_line
from flbench.reports.tables import share, size
from flbench.results import reading
from flbench.results.diff import COSTS, HASHES, Pair
from flbench.results.diff import diff as compare

NONE = "-"  # what a run does not have
DIGITS = 12  # of a hash


def diff(first: Path, second: Path, *, as_json: bool = False) -> None:
    """Print what differs between two runs.

    Args:
        first: A run folder.
        second: Another run folder.
        as_json: Whether to print JSON.

    Raises:
        UserError: A path is not a run folder.
        DataError: A file in a folder is damaged.
    """
    found = compare(reading.read(first), reading.read(second))
    if as_json:
        parts = {
            "configuration": found.configuration,
            "provenance": found.provenance,
            "metrics": found.metrics,
        }
        console.json(
            {"first": str(first), "second": str(second)}
            | {
                name: {key: list(pair) for key, pair in part.items()}
                for name, part in parts.items()
            }
            | {"notes": list(found.warnings)}
        )
        return
    console.line(f"first:  {first}")
    console.line(f"second: {second}")
    if found.configuration:
        _table("Configuration", found.configuration)
    else:
        console.line("The configurations are equal.")
    _metrics(found.metrics)
    if found.provenance:
        short = {
            name: tuple(value[:DIGITS] if value else value for value in pair)
            if name in HASHES
            else pair
            for name, pair in found.provenance.items()
        }
        _table("Versions, hardware and hashes", short)
    console.notes(found.warnings)


def _table(title: str, pairs: Mapping[str, Pair]) -> None:
    """Print the values of both runs, one row for each name."""
    table = console.titled_table(title)
    for column in ("", "first", "second"):
        table.add_column(column, overflow="fold")
    for name, pair in pairs.items():
        table.add_row(name, *map(_text, pair))
    console.whole_table(table)


def _metrics(pairs: Mapping[str, Pair]) -> None:
    """Print the results of both runs and their differences."""
    table = console.titled_table(
        "Metrics at the best round by validation; bytes and seconds of all rounds"
    )
    table.add_column("")
    for column in ("first", "second", "second - first"):
        table.add_column(column, justify="right")
    for name, (first, second) in pairs.items():
        table.add_row(name, *_result(name, first, second))
    console.whole_table(table)


def _result(name: str, first: Any, second: Any) -> tuple[str, str, str]:
    """Return a result of both runs and its change, as text."""
    if first is None or second is None:
        return _text(first), _text(second), NONE
    if name in COSTS:
        return size(first), size(second), f"x {second / first:.3g}" if first else NONE
    if name in ("best_round", "seconds"):
        return f"{first:.4g}", f"{second:.4g}", f"{second - first:+.4g}"
    return share(first), share(second), f"{second - first:+.4f}"


def _text(value: Any) -> str:
    """Return a value as YAML and JSON write it, on one line."""
    if value is None:
        return NONE
    return one_line(value if isinstance(value, str) else json.dumps(value))
