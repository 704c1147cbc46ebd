"""The figures of flbench: figures of matplotlib that a notebook shows, and the texts in them."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from math import ceil
from textwrap import wrap
from typing import Any, Final
from unicodedata import combining, east_asian_width

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, LogitFormatter, ScalarFormatter

from flbench.core.text import one_line

DOTS: Final = 144  # per inch, twice the size at which a notebook shows the picture
MOST_CHARACTERS: Final = 24  # of a name beside an axis
CHARACTER: Final = 0.6  # mean width of a character, as a share of the font's size
LINE: Final = 1.25  # height of a line, as a share of the font's size
WIDE: Final = "@MWmw%"  # letters that need almost twice the mean width
NUMBERS: Final = (LogFormatter, LogitFormatter, ScalarFormatter)
"""Formatters that write numbers, with powers of ten as formulas."""


def forget_file_of_current_folder() -> None:
    """Let matplotlib have its defaults if it has read a `matplotlibrc` of the current folder.

    Such a file has precedence over the user's own. The commands of flbench are used in folders of
    others, and the file can let LaTeX draw all texts, with a preamble that reads any file. In a
    script or notebook the current folder is the user's own, and the file keeps its effect.
    """
    is_command = "flbench.cli.app" in sys.modules or sys.flags.safe_path
    if is_command and os.path.dirname(os.path.abspath(mpl.matplotlib_fname())) == os.getcwd():
        mpl.rcdefaults()


forget_file_of_current_folder()


class Picture(Figure):
    """A figure that is not part of pyplot's state, and that notebooks show as a picture.

    IPython shows a plain `Figure` only in sessions that have imported pyplot. All texts but numbers
    on axes are literal: names of data, classes, clients and methods may contain `$`, which
    matplotlib and LaTeX would read as the begin of a formula.
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure; called by matplotlib."""
        numbers = set(map(id, _numbers(self)))
        for text in self.findobj(Text):
            if id(text) not in numbers:
                text.set_parse_math(False)
                text.set_usetex(False)
        with warnings.catch_warnings():
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


def title(text: str, inches: float) -> str:
    """Return a title in at most three lines that fit into a width.

    Args:
        text: The title.
        inches: Width of the figure.
    """
    lines = wrap(one_line(text), max(16, int(inches * 72 / (12 * CHARACTER))))
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][:-3]}..."])


def width(label: str, size: float = 10.0) -> float:
    """Return about the width of a label in inches.

    Args:
        label: A text of one line.
        size: Size of the font in points.
    """
    ems = sum(
        0.0
        if combining(letter)
        else 1.0
        if letter in WIDE or east_asian_width(letter) in "FW"
        else CHARACTER
        for letter in label
    )
    return ems * size / 72


def height(names: Sequence[str], inches: float, size: float = 10.0) -> float:
    """Return the height in inches of names below an axis, as `name_places` writes them.

    Args:
        names: Names of all places.
        inches: Width of the axis.
        size: Size of the font in points.
    """
    longest = max((width(name, size) for name in names), default=0.0)
    is_upright = longest + 0.04 > inches / max(1, len(names))
    return longest if is_upright else LINE * size / 72


def name_places(axes: Axes, names: Sequence[str], inches: float, size: float = 10.0) -> None:
    """Write names below the places 0, 1, ... of an axis such that none covers another.

    Names stand upright where they are too wide for their place. Where even upright names are too
    close, some of them are left out, at equal distances.

    Args:
        axes: The axes.
        names: Names of all places.
        inches: Width of the axis.
        size: Size of the font in points.
    """
    line = LINE * size / 72
    is_upright = height(names, inches, size) > line
    step = max(1, ceil(line * len(names) / inches)) if is_upright else 1
    shown = range(0, len(names), step)
    axes.set_xticks(
        shown, [names[k] for k in shown], rotation=90 if is_upright else 0, fontsize=size
    )


def _numbers(figure: Figure) -> Iterator[Text]:
    """Yield the texts of axes that formatters of numbers have written."""
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.get_offset_text()
            for formatter, ticks_of in (
                (axis.get_major_formatter(), axis.get_major_ticks),
                (axis.get_minor_formatter(), axis.get_minor_ticks),
            ):
                if isinstance(formatter, NUMBERS):
                    for tick in ticks_of():
                        yield from (tick.label1, tick.label2)
