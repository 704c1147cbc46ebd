"""Figures of papers in words: as printed, as measured, with their spread, with a sign."""

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from flbench.reproduce.configurations import Change
from flbench.reproduce.schema import Footnote, Paper
from flbench.reproduce.verdicts import Verdict

UNITS: Final = {"percent": "%", "percent^2": "%^2"}
"""What is written for a unit that is not its own name."""


def decimals(paper: Paper, number: str) -> int:
    """Return how many decimals most of a table's figures have."""
    values = [value for row in paper.tables[number].rows.values() for value in row.values]
    places = [_places(value) for value in values if value is not None]
    return Counter(places).most_common(1)[0][0] if places else 0


def _places(value: float) -> int:
    text = str(Decimal(str(value)).normalize())
    return len(text.partition(".")[2]) if "E" not in text else 0


def printed(value: float, common: int) -> str:
    """Return a published figure with a table's usual decimals, or with more if it has more."""
    return f"{value:.{max(common, _places(value))}f}"


def measured(mean: float | None, spread: float | None, unit: str, *, gap: bool = False) -> str:
    """Return mean and spread, as a difference with sign and unit if asked."""
    if mean is None:
        return "-"
    sign = "+" if gap else ""
    text = f"{mean:{sign}.2f}" + ("" if spread is None else f" ± {spread:.2f}")
    return f"{text} {UNITS.get(unit, unit)}" if gap else text


def signed(value: float | None, unit: str, *, bare: bool = False) -> str:
    """Return a difference with its sign, and its unit unless it is to be bare."""
    if value is None:
        return "-"
    return f"{value:+.2f}" if bare else f"{value:+.2f} {UNITS.get(unit, unit)}"


def claimed(verdict: Verdict) -> str:
    """Return what a claim promises."""
    if verdict.claim.reason is not None:
        return "-"
    if verdict.claim.bound == 0:
        return "above" if verdict.claim.above is not None else "below"
    sign = "at least " if verdict.claim.above is not None else "at most "
    unit = UNITS.get(verdict.unit, verdict.unit)
    return f"{sign}{verdict.claim.bound:+g} {unit}"


def changed(changes: Iterable[Change]) -> str:
    """Return changed keys with their values here and in the paper."""
    return ", ".join(
        f"{key} {_word(after)} (paper: {_word(before)})" for key, before, after in changes
    )


def _word(value: object) -> str:
    return "all" if value is None else str(list(value) if isinstance(value, tuple) else value)


def footnote(number: str, k: int, note: Footnote) -> str:
    """Return a footnote as it stands below the tables."""
    place = ", ".join(part for part in (note.row, note.column) if part)
    return f"[{number}.{k + 1}] {f'{place}: ' if place else ''}{note.text}."


def marks(number: str, row: str, column: str, notes: Sequence[Footnote]) -> str:
    """Return the marks of the footnotes that a cell has; those to a whole table have none."""
    found = [
        f" [{number}.{k + 1}]"
        for k, note in enumerate(notes)
        if note.row in (None, row)
        and note.column in (None, column)
        and (note.row, note.column) != (None, None)
    ]
    return "".join(found)
