"""Curves of runs over rounds, and pictures as files and as parts of a page."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flbench.config.schema import BestConfig
from flbench.core import files
from flbench.core.errors import UserError
from flbench.reports.picture import Picture, in_legend
from flbench.reports.picture import title as wrapped
from flbench.results.metrics_file import Row
from flbench.results.summary import BY_ACCURACY


def curves(runs: Sequence[tuple[str, Sequence[Row]]], by: BestConfig = BY_ACCURACY) -> Figure:
    """Draw validation accuracy and training loss over rounds, a line for each run.

    If a run has no validation accuracy, test accuracy is drawn for all runs instead; the label of
    the axis names the split.

    Args:
        runs: Name and lines of metrics.csv of each run.
        by: Section `evaluation.best` of the runs: the metric that takes the place of the accuracy
            where there are no classes.
    """
    figure = Picture(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    validated = all(_line(rows, "validation", "personal", by.column)[0] for _, rows in runs)
    split = "validation" if validated else "test"
    for k, (name, rows) in enumerate(runs):
        style = line_style(k) | {"label": in_legend(wrapped(name, 3.0))}
        left.plot(*_line(rows, split, "personal", by.column), marker=".", **style)
        right.plot(*_line(rows, "train", "", "loss"), **style)
    left.set(xlabel="round", ylabel=f"{split} {by.title}")
    right.set(xlabel="round", ylabel="training loss")
    if by == BY_ACCURACY:
        left.set(ylim=(0, 1))
        right.set(ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1:
        left.legend(frameon=False)
    return figure


def line_style(index: int) -> dict[str, Any]:
    """Return colour and dashes of one of several lines; ten colours, then the same with dashes.

    None of the colours is pale, so that thin lines are legible on white.

    >>> line_style(0)["color"] == line_style(10)["color"]
    True
    >>> line_style(0)["linestyle"], line_style(10)["linestyle"]
    ('-', '--')
    """
    dashes = ("-", "--", ":", "-.")
    return {"color": f"C{index % 10}", "linestyle": dashes[index // 10 % len(dashes)]}


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, in the format of the file's suffix.

    Raises:
        UserError: matplotlib does not know the suffix.
        OSError: The file cannot be written. An existing file does not change then.
    """
    check(path)
    files.write(path, _encode(figure, path.suffix.removeprefix(".")))


def check(path: Path) -> None:
    """Raise a UserError if matplotlib does not know the suffix of a figure's file."""
    if path.suffix.removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise UserError(f"the file of a picture must end with .png, .svg or .pdf, got {path}.")


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element, for use within a page."""
    text = _encode(figure, "svg").decode()
    return text[text.index("<svg") :]


def _encode(figure: Figure, form: str) -> bytes:
    """Return a figure as bytes. They are reproducible: there is no date, and ids are fixed.

    A figure that a page shows and a folder has as a file is drawn once as SVG. It must not change
    afterwards.
    """
    if form == "svg" and figure in _drawn:
        return _drawn[figure]
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)
    content = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "flbench"}):
        figure.savefig(content, format=form, dpi=120, metadata={dated: None} if dated else None)
    if form == "svg":
        _drawn[figure] = content.getvalue()
    return content.getvalue()


_drawn: WeakKeyDictionary[Figure, bytes] = WeakKeyDictionary()
"""SVG files of figures that are still in use."""


def _line(
    rows: Sequence[Row], split: str, protocol: str, metric: str
) -> tuple[list[int], list[float]]:
    points = [(row.round, row.value) for row in rows if row[1:4] == (split, protocol, metric)]
    return [number for number, _ in points], [value for _, value in points]
