"""What is shown: tables with what writes their values, pictures, and pages of both as HTML.

A table is declared once. The console, Markdown, HTML and LaTeX have the same columns with the same
numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final

from flbench.core.text import one_line, printable

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

Write = Callable[[Any], str]
"""Writes a value that is not missing as text."""
# Colours that colour-blind people tell apart, all with a contrast of at least 3 on white.
COLOURS: Final = ("#0072b2", "#d55e00", "#117733", "#aa4499", "#222222", "#8a6d00", "#b5485d")
BROAD: Final = 500  # pixels: wider pictures scroll on a phone
TALL: Final = 40  # rows: longer tables scroll on a page


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
        rows: Values of each row by key; a missing one (see `is_missing`) is written as a dash.
        about: Explanation below the heading; "" for none.
        place: Data set with a setting that the table belongs to; "" for none.
        marks: What is said of the value of a row and a key, in words: `best`, `like` (a test does
            not tell it from the best), `apart` (it differs significantly from the reference).
        legend: What the marks mean, for HTML and LaTeX, which have them.
        screen: Keys that LaTeX leaves out, because a paper has no room for them.
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

    @property
    def heading(self) -> str:
        """The title with the place."""
        return f"{one_line(self.place)}: {self.title}" if self.place else self.title

    @property
    def is_tall(self) -> bool:
        """Whether a page shows the table in a box that scrolls."""
        return len(self.rows) > TALL

    @cached_property
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


@dataclass(frozen=True)
class Drawn:
    """A picture of a page, which is drawn once for the page and for its file.

    Attributes:
        name: Name of its file, which no other picture of the page has.
        title: Heading above the picture.
        about: What it shows.
        figure: The picture; it must not change afterwards.
        is_map: Whether colours have a meaning, so that a dark page does not invert them.
    """

    kind: ClassVar = "picture"
    name: str
    title: str
    about: str
    figure: "Figure"
    is_map: bool = False

    @cached_property
    def file(self) -> bytes:
        """The picture as an SVG file."""
        from flbench.reports import picture

        return picture.encode(self.figure, "svg", self.name)

    @property
    def svg(self) -> str:
        """The picture as an element of a page."""
        source = self.file.decode()
        return source[source.find("<svg") :].replace("<svg", '<svg role="img"', 1)

    @property
    def width(self) -> int:
        """Width in pixels of CSS."""
        return round(96 * float(self.figure.get_size_inches()[0]))

    @property
    def style(self) -> str:
        """Classes of CSS."""
        return f"{'map' if self.is_map else 'lines'}{' broad' if self.width > BROAD else ''}"


@dataclass(frozen=True)
class Chapter:
    """A part of a page below a title; within another chapter it is folded.

    Attributes:
        title: The title.
        parts: Sentences, tables, pictures, facts by name, lists of sentences, and chapters.
        is_open: Whether it is unfolded at first.
    """

    kind: ClassVar = "chapter"
    title: str
    parts: Sequence["Part"]
    is_open: bool = False

    def pictures(self) -> Iterator[Drawn]:
        """Yield the pictures of the chapter and of those in it."""
        for one in self.parts:
            if isinstance(one, Chapter):
                yield from one.pictures()
            elif isinstance(one, Drawn):
                yield one


Part = str | Shown | Drawn | Chapter | Mapping[str, str] | Sequence[str]
"""A part of a chapter: a paragraph, a table, a picture, a folded chapter, facts, or a list."""


@dataclass(frozen=True)
class Page:
    """A report as a page.

    Attributes:
        heading: Its title.
        chapters: What follows the answer.
        answer: What the report says, in sentences.
        warnings: Sentences about what limits it.
        facts: Names and values below them.
        about: How to read the figures.
    """

    heading: str
    chapters: Sequence[Chapter]
    answer: Sequence[str] = ()
    warnings: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    about: str = ""

    def html(self) -> str:
        """Return the page as HTML."""
        return template("reports/page.html").render(page=self)


def card(heading: str, *parts: Any) -> str:
    """Return what notebooks show below a heading, in the colours of their theme.

    Args:
        heading: The heading.
        parts: Parts of a page, of which empty ones are left out, or the state of a progress bar.
    """
    macros: Any = template("reports/macros.html").module
    return str(macros.card(heading, parts))


@cache  # compiling it takes longer than filling it
def template(name: str) -> "Template":
    """Return a template of Jinja by its path below the package; it escapes all texts."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda path: files("flbench").joinpath(path).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template(name)
