"""The table of text on clients that join after the training."""

from collections.abc import Mapping
from math import isnan
from typing import Any, Final

from flbench.analysis.arrangement import Arrangement
from flbench.analysis.blocks import number, records, with_width_of
from flbench.analysis.tables import Analysis
from flbench.core.text import one_line
from flbench.reports.tables import Block, size

FLOOR: Final = {"local": "from scratch", "ft": "fine-tuned FedAvg"}
"""Methods beside which the others are read."""


def of_place(analysis: Analysis, place: str, digits: int = 4) -> Block | None:
    """Return the table of the new clients of a place; None if no run has any.

    Args:
        analysis: The tables.
        place: Label of the place.
        digits: Digits of a score.
    """
    rows = records(analysis.new_clients, place)
    if not rows:
        return None
    epochs = sorted({row["epochs"] for row in rows})
    known = {(row["method"], row["epochs"]): row for row in rows}
    has_gap = any(not isnan(row["gap"]) for row in rows)
    header = ["method", *(f"{_words(k)}" for k in epochs)]
    header += [f"gap, {_words(k)}" for k in epochs] if has_gap else []
    header += [f"worst 10 %, {_words(epochs[-1])}", "bytes to join", "steps"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [known.get((method, k)) for k in epochs]
        last = next(row for row in reversed(mine) if row is not None)
        gaps = [_signed(row, digits) for row in mine] if has_gap else []
        lines.append(
            (
                one_line(method),
                *("-" if row is None else with_width_of(row, digits) for row in mine),
                *gaps,
                number(last["worst10"], digits),
                "-" if isnan(last["received_bytes"]) else size(last["received_bytes"]),
                number(last["steps"], 1),
            )
        )
    return Block(
        f"{one_line(place)}: clients that join later",
        tuple(header),
        tuple(lines),
        _about(analysis.comparison, place, has_gap=has_gap),
    )


def _about(comparison: Arrangement, place: str, *, has_gap: bool) -> str:
    """Return what the table shows, and which methods are missing beside the others."""
    entries = comparison.at(place)
    what = entries[0].run.config.client_metric.replace("_", " ")
    about = (
        f"Test {what} over the clients that trained in no round, after epochs of training on their"
        " own training parts, on a copy that is discarded. 0 epochs: the model that the server"
        " would send. Bytes and steps are those of a client, for the largest number of epochs."
    )
    if has_gap:
        about += (
            f" Gap: this {what} minus that of the clients that trained, after as many further"
            " epochs from their own models."
        )
    names = {entry.run.config.algorithm.name for entry in entries}
    missing = [f"`{name}` ({words})" for name, words in FLOOR.items() if name not in names]
    if missing:
        about += (
            f" The figures are read beside those of {' and '.join(missing)}, which this comparison"
            " does not have."
        )
    return about


def _words(epochs: int) -> str:
    """Return a number of epochs in words."""
    return f"{epochs} epoch" if epochs == 1 else f"{epochs} epochs"


def _signed(row: Mapping[str, Any] | None, digits: int) -> str:
    """Return the gap of a row with its sign."""
    return "-" if row is None or isnan(row["gap"]) else f"{row['gap']:+.{digits}f}"
