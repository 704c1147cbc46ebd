"""Pages: the report of runs, comparisons and studies as one file, which needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Final

from flbench.core.text import printable
from flbench.reports import picture
from flbench.reports.shown import Shown

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

BROAD: Final = 500  # pixels: wider pictures scroll on a phone


@dataclass(frozen=True)
class Drawn:
    """A picture of a page. It is drawn once, for the page and for its file.

    Attributes:
        name: Name of its file, which no other picture of the page has.
        title: Heading above the picture.
        about: What it shows.
        figure: The picture; it must not change afterwards.
        is_map: Whether colours stand for values or classes, so that a dark page does not invert
            them.
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


def html(table: Shown) -> str:
    """Return a table as HTML with its heading and explanation, for notebooks."""
    return str(template("reports/macros.html").module.titled(table))  # type: ignore[attr-defined]


@cache  # compiling it takes longer than filling it
def template(name: str) -> "Template":
    """Return a template of Jinja, which escapes all texts.

    Args:
        name: Path of the file below the package.
    """
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
