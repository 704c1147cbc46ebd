"""Tables as they are shown: values, and how each column writes them.

A table is declared once. The console, Markdown, HTML and LaTeX have the same columns with the same
numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from flbench.core.text import one_line

Write = Callable[[Any], str]
"""Writes a value that is not missing as text."""


def text(value: Any) -> str:
    """Return names as text on one line; a table aligns such a column to the left."""
    return one_line(", ".join(value) if isinstance(value, tuple) else str(value))


def score(value: float, digits: int = 4) -> str:
    """Return a number with four decimals."""
    return f"{value:.{digits}f}"


whole: Final = partial(score, digits=0)
"""Returns a whole number."""
tenth: Final = partial(score, digits=1)
"""Returns a number with one decimal."""
significant: Final = "{:.4g}".format
"""Returns a number with four significant digits, for values in the units of the data."""


def run_score(value: object, *, has_classes: bool) -> str:
    """Return a metric of a run, which is a share if it classifies; a dash for no number.

    >>> run_score(0.00001234, has_classes=False), run_score(0.00001234, has_classes=True)
    ('1.234e-05', '0.0000')
    """
    if not isinstance(value, float | int):
        return "-"
    return score(value) if has_classes or isinstance(value, int) else significant(value)


def size(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and what writes its values, in papers otherwise."""

    heading: str
    write: Write = text
    paper: Write | None = None

    @property
    def is_text(self) -> bool:
        """Whether the column is aligned to the left."""
        return self.write is text


@dataclass(frozen=True)
class Shown:
    """A table as it is shown. Columns without a value in any row are left out.

    Attributes:
        title: Heading of the table.
        columns: The columns by key.
        rows: Values of each row by key. None, NaN, "", () and a tuple that begins with NaN are
            missing: they are written as a dash.
        about: Explanation below the heading; "" for none.
        place: Data set with a setting that the table belongs to; "" for none.
        marks: What is said of the value of a row and a key, in words: `best`, `like` (a test does
            not tell it from the best), `apart` (it differs significantly from the reference).
        legend: What the marks mean, for HTML and LaTeX, which have them; "" for no marks.
        screen: Keys that LaTeX leaves out, because a paper has no room for them.
        fixed: Keys that each part of a table has that LaTeX divides because it is too wide; () for
            a table that is not divided.
        is_tall: Whether a page shows the table in a box that scrolls.
    """

    kind: ClassVar = "table"
    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    about: str = ""
    place: str = ""
    marks: Mapping[tuple[int, str], str] | None = None
    legend: str = ""
    screen: Sequence[str] = ()
    fixed: Sequence[str] = ()
    is_tall: bool = False

    @property
    def heading(self) -> str:
        """The title with the place."""
        return f"{one_line(self.place)}: {self.title}" if self.place else self.title

    @property
    def used(self) -> dict[str, Column]:
        """The columns with a value in some row."""
        return {
            key: column
            for key, column in self.columns.items()
            if any(not is_missing(row.get(key)) for row in self.rows)
        }

    def cells(self, *, is_paper: bool = False) -> list[dict[str, str]]:
        """Return the cells of each row by key, as text of pages or of papers."""
        writes = {key: (is_paper and one.paper) or one.write for key, one in self.used.items()}
        return [
            {
                key: "-" if is_missing(row.get(key)) else write(row[key])
                for key, write in writes.items()
            }
            for row in self.rows
        ]

    def mark(self, row: int, key: str) -> Sequence[str]:
        """Return what is said of a value."""
        return (self.marks or {}).get((row, key), "").split()


def is_missing(value: Any) -> bool:
    """Return whether a value is missing, so that a table has a dash.

    >>> [is_missing(one) for one in (None, float("nan"), (), "", (float("nan"), 0, 1), 0, "a")]
    [True, True, True, True, True, False, False]
    """
    if isinstance(value, tuple):
        return not value or is_missing(value[0])
    return value is None or value != value or (isinstance(value, str) and not value)
