"""Formats published and measured numbers, differences, changed settings and footnotes."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from flbench.reproduce.configurations import Change
from flbench.reproduce.measure import MeasuredCell
from flbench.reproduce.schema import Claim, Footnote, PaperFacts
from flbench.reproduce.verdicts import Verdict

UNITS: Final = {"percent": "%", "percent^2": "%^2"}
"""Symbols of units; other units are written as their names."""


def decimals(paper: PaperFacts, number: str) -> int:
    """Return the number of decimals that most numbers of a table have."""
    values = [value for row in paper.tables[number].rows.values() for value in row.values]
    places = [_places(value) for value in values if value is not None]
    return Counter(places).most_common(1)[0][0] if places else 0


def _places(value: float) -> int:
    """Return the number of decimals of a number."""
    text = str(Decimal(str(value)).normalize())
    return len(text.partition(".")[2]) if "E" not in text else 0


def printed(value: float, common: int) -> str:
    """Format a published number.

    Args:
        value: The number.
        common: Usual number of decimals of its table; the number keeps further decimals.

    >>> printed(85.0, 2), printed(85.125, 2)
    ('85.00', '85.125')
    """
    return f"{value:.{max(common, _places(value))}f}"


def measured(mean: float | None, std: float | None, unit: str, *, gap: bool = False) -> str:
    """Format a mean and its standard deviation.

    Args:
        mean: Mean over seeds; None if nothing was measured.
        std: Standard deviation over seeds; None for one seed.
        unit: Unit of the numbers.
        gap: Whether the mean is a difference, which gets a sign and the unit.

    >>> measured(85.0, 0.5, "percent"), measured(1.5, None, "points", gap=True)
    ('85.00 ± 0.50', '+1.50 points')
    """
    if mean is None:
        return "-"
    text = with_sign(mean) if gap else f"{mean:.2f}"
    text += "" if std is None else f" ± {std:.2f}"
    return f"{text} {UNITS.get(unit, unit)}" if gap else text


def bound(line: MeasuredCell) -> str:
    """Format the lower bound of a cell without a value: `> 500`; a dash without one."""
    if not line.at_least:
        return "-"
    return f"> {min(line.at_least.values()) - 1:g}"


def seeds(line: MeasuredCell) -> str:
    """Format the number of seeds with a value; a dash without one.

    Where runs do not reach their target accuracy, the number of all runs follows: `2 of 3`.
    """
    if line.at_least:
        return f"{len(line.values)} of {len(line.values) + len(line.at_least)}"
    return str(len(line.values) or "-")


def notes(claim: Claim) -> str:
    """Return the notes to a claim in parentheses; "" without any."""
    found = [claim.note] if claim.note else []
    if claim.measured_row is not None:
        found.append(f"measured: {claim.measured_row}")
    return f" ({'; '.join(found)})" if found else ""


def signed(value: float | None, unit: str, *, bare: bool = False) -> str:
    """Format a difference with its sign; `bare` leaves out the unit."""
    if value is None:
        return "-"
    return with_sign(value) if bare else f"{with_sign(value)} {UNITS.get(unit, unit)}"


def with_sign(value: float, places: int = 2) -> str:
    """Format a difference with its sign; what rounds to zero has none.

    Args:
        value: The difference.
        places: Number of decimals.

    >>> with_sign(1.5), with_sign(-0.04, 1)
    ('+1.50', '0.0')
    """
    text = f"{value:+.{places}f}"
    return text if float(text) else text[1:]


def claimed(verdict: Verdict) -> str:
    """Format the claimed difference, such as `at least +5 points`."""
    if verdict.claim.reason is not None:
        return "-"
    if verdict.claim.bound == 0:
        return "above" if verdict.claim.above is not None else "below"
    sign = "at least " if verdict.claim.above is not None else "at most "
    unit = UNITS.get(verdict.unit, verdict.unit)
    return f"{sign}{verdict.claim.bound:+g} {unit}"


def after_colon(changes: Sequence[Change]) -> str:
    """Format changed keys with their values here and in the paper; nothing if there are none.

    >>> after_colon([("train.rounds", 200, 40)])
    ': train.rounds 40 (paper: 200)'
    >>> after_colon([])
    ''
    """
    found = [f"{key} {_word(after)} (paper: {_word(before)})" for key, before, after in changes]
    return f": {', '.join(found)}" if found else ""


def _word(value: object) -> str:
    return "all" if value is None else str(list(value) if isinstance(value, tuple) else value)


def footnote(number: str, k: int, note: Footnote) -> str:
    """Format a footnote for the list below the tables."""
    place = ", ".join(part for part in (note.row, note.column) if part)
    return f"[{number}.{k + 1}] {f'{place}: ' if place else ''}{note.text}."


def marks(number: str, row: str, column: str, notes: Sequence[Footnote]) -> str:
    """Return the marks of a cell's footnotes. Footnotes to a whole table have no marks."""
    found = [
        f" [{number}.{k + 1}]"
        for k, note in enumerate(notes)
        if note.row in (None, row)
        and note.column in (None, column)
        and (note.row, note.column) != (None, None)
    ]
    return "".join(found)
