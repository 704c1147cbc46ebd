"""The figures of flbench: figures of matplotlib that a notebook shows, and the texts in them."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flbench.core import files
from flbench.core.errors import UserError
from flbench.core.text import one_line

Drawing = TypeVar("Drawing", bound=Callable[..., Any])

DOTS: Final = 144  # per inch, twice the size at which a notebook shows the picture
MOST_CHARACTERS: Final = 24  # of a name beside an axis
LITERAL: Final[dict[Any, Any]] = {"text.parse_math": False, "text.usetex": False}
"""Names of data, classes, clients and methods may contain `$`, which begins a formula otherwise."""


def literal(function: Drawing) -> Drawing:
    """Let the texts of a figure that a function draws be literal."""
    decorated: Drawing = mpl.rc_context(LITERAL)(function)
    return decorated


class Picture(Figure):
    """A figure that is not part of pyplot's state, and that notebooks show as a picture.

    IPython shows a plain `Figure` only in sessions that have imported pyplot.
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure; called by matplotlib."""
        with warnings.catch_warnings(), mpl.rc_context(LITERAL):
            # A box stands for a character that the font lacks.
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from")
            warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
            super().draw(renderer)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture as PNG, and the size in pixels at which to show it."""
        content = BytesIO()
        self.savefig(content, format="png", dpi=DOTS)
        width, height = self.get_size_inches() * DOTS / 2
        return content.getvalue(), {"width": round(width), "height": round(height)}


def encode(figure: Figure, form: str, name: str = "flbench") -> bytes:
    """Return a figure as bytes. They are reproducible: there is no date, and ids are fixed.

    Args:
        figure: The figure; it keeps the places of its parts afterwards.
        form: `svg`, `pdf` or `png`. The texts of an SVG are texts.
        name: Part of the ids of an SVG; pictures of one page need different ones.
    """
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)
    content = BytesIO()
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")  # otherwise matplotlib draws twice, first for the layout
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(content, format=form, dpi=120, metadata={dated: None} if dated else None)
    return content.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, in the format of the file's suffix.

    Raises:
        UserError: matplotlib does not know the suffix.
        OSError: The file cannot be written. An existing file does not change then.
    """
    check(path)
    files.write(path, encode(figure, path.suffix.removeprefix(".")))


def check(path: Path) -> None:
    """Raise a UserError if matplotlib does not know the suffix of a figure's file."""
    if path.suffix.removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise UserError(f"the file of a picture must end with .png, .svg or .pdf, got {path}.")


def short(name: str, most: int = MOST_CHARACTERS) -> str:
    r"""Return a name as a label: one line of at most 24 characters.

    >>> short("Nevus of the left arm, 2019"), short("a\nb")
    ('Nevus of the left arm...', 'a b')
    """
    name = one_line(str(name))
    return name if len(name) <= most else f"{name[: most - 3]}..."


def in_legend(label: str) -> str:
    """Return a label that matplotlib shows in a legend; it leaves out those that begin with `_`.

    >>> in_legend("_mine"), in_legend("fedavg")
    (' _mine', 'fedavg')
    """
    return f" {label}" if label.startswith("_") else label


def plain(axes: Axes, **grid: Any) -> None:
    """Hide the frame of a plot, and draw a pale grid behind the data."""
    axes.grid(alpha=0.3, **grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
