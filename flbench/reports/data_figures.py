"""Pictures of data, classes and clients: partitions, confusion matrices, and scores."""

from collections.abc import Mapping, Sequence
from math import ceil, nan
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.cells import cell_len

from flbench.core.text import one_line
from flbench.reports.picture import Picture, in_legend, literal, plain, short

if TYPE_CHECKING:
    from flbench.data.federation import Federation

MOST_NAMED: Final = 30
"""Clients whose names a picture of all clients shows."""
MOST_CLASSES: Final = 20
"""Classes whose names the picture of a partition shows."""
CHARACTER: Final = 0.6  # mean width of a character, as a share of the font's size
LINE: Final = 1.25  # height of a line, as a share of the font's size


def partition(federation: "Federation") -> Picture:
    """Draw the number of training samples by client (rows) and class (columns), in log scale."""
    counts = federation.counts.numpy()
    data, parts = federation.dataset, federation.partition
    return partition_table(counts, data.classes, data.name, parts.names, parts.shifts)


@literal
def partition_table(
    counts: NDArray[np.integer],
    names: Sequence[str],
    dataset: str,
    client_names: Sequence[str] = (),
    shifts: Sequence[str] = (),
) -> Picture:
    """Draw the number of training samples by client and class, in log scale.

    Args:
        counts: [N, C] number of training samples of each client and class.
        names: Names of the C classes.
        dataset: Name of the data set.
        client_names: Names of the N natural clients; empty for clients without names.
        shifts: How the samples of each client are shifted; empty if none are.
    """
    clients, classes = counts.shape
    columns = [short(name) for name in names] if classes <= MOST_CLASSES else []
    rows = [short(name) for name in client_names] or [str(k) for k in range(clients)]
    if shifts:
        rows = [short(f"{name}, {what}") for name, what in zip(rows, shifts, strict=True)]
    rows = rows if clients <= MOST_NAMED else []
    wide = min(9.5, 0.25 * classes)
    figure, axes = _board(wide, min(10.5, 0.16 * clients), rows, columns)
    values = np.where(counts > 0, counts, nan)
    norm = LogNorm(1, max(10, int(counts.max())))
    image = heat(axes, values, rows, columns, wide, cmap="viridis", norm=norm)
    axes.set(xlabel="class", ylabel="client")
    axes.set_title(wrapped(f"{dataset}: {clients} clients", figure.get_figwidth() - 1.0))
    figure.colorbar(image, ax=axes, label="training samples", format="{x:g}")
    return figure


def heat(
    axes: Axes,
    values: NDArray[np.floating[Any]],
    rows: Sequence[str],
    columns: Sequence[str],
    inches: float,
    size: float = 10.0,
    **style: Any,
) -> AxesImage:
    """Draw values as colours, with names beside rows and columns.

    Args:
        axes: The axes.
        values: [R, Q] values; NaN for an empty field.
        rows: Names of the R rows; numbers if there are none.
        columns: Names of the Q columns; numbers if there are none.
        inches: Width of the axes.
        size: Size of the names in points.
        style: Colours, see `matplotlib.axes.Axes.imshow`.
    """
    style = {"aspect": "auto", "interpolation": "nearest"} | style
    image = axes.imshow(np.ma.masked_invalid(values), **style)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if len(columns) == values.shape[1]:
        name_places(axes, columns, inches, size)
    if len(rows) == values.shape[0]:
        axes.set_yticks(range(len(rows)), rows, fontsize=size)
    return image


def write(axes: Axes, texts: NDArray[Any], is_dark: NDArray[np.bool_], size: float) -> None:
    """Write texts [R, Q] into the fields of `heat`, white where these are dark."""
    for (row, column), text in np.ndenumerate(texts):
        colour = "white" if is_dark[row, column] else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, size=size)


def _board(
    wide: float, high: float, rows: Sequence[str], columns: Sequence[str]
) -> tuple[Picture, Axes]:
    """Return a figure for `heat` of a size in inches, to which that of the names is added."""
    size = wide + max(2.5, 1.7 + _longest(rows)), high + max(1.5, 1.1 + _longest(columns))
    figure = Picture(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


@literal
def classes(
    names: Sequence[str], metrics: Mapping[str, Sequence[float]], title: str, xlabel: str
) -> Picture:
    """Draw metrics of classes as bars, a group of bars for each class.

    Args:
        names: Names of the C classes.
        metrics: Values [C] in [0, 1] by name of the metric.
        title: Title of the figure.
        xlabel: What the axis of the classes shows, such as their order.
    """
    count = len(names)
    wide, own = min(14.0, 3.0 + 0.45 * count), [short(name) for name in names]
    deep = max(3.6, 2.8 + _longest(own))
    figure = Picture(figsize=(wide, deep), layout="constrained")
    axes = figure.add_subplot()
    bar = 0.8 / len(metrics)
    for k, (metric, values) in enumerate(metrics.items()):
        places = np.arange(count) + (k - (len(metrics) - 1) / 2) * bar
        axes.bar(places, values, bar, label=in_legend(metric))
    name_places(axes, own, wide - 0.7)
    axes.set(ylim=(0, 1), xlabel=xlabel)
    axes.set_title(wrapped(title, wide), loc="left")
    plain(axes, axis="y")
    axes.legend(frameon=False, ncols=len(metrics), loc="lower right", bbox_to_anchor=(1, 1))
    return figure


@literal
def confusion(counts: NDArray[np.floating[Any]], names: Sequence[str], title: str) -> Picture:
    """Draw a confusion matrix as shares of each true class.

    Cells of a matrix of at most 15 classes show the share in percent.

    Args:
        counts: [C, C] number of samples by true (rows) and predicted class (columns).
        names: Names of the C classes.
        title: Title of the figure.
    """
    count = len(names)
    with np.errstate(invalid="ignore"):
        shares = np.nan_to_num(counts / counts.sum(axis=1, keepdims=True))
    labels = [short(name) for name in names] if count <= 40 else []
    side = min(10.0, 1.0 + 0.36 * count)
    figure, axes = _board(side, side, labels, labels)
    image = heat(axes, shares, labels, labels, side, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    if count <= 15:
        texts = np.where(counts > 0, np.char.mod("%.0f", 100 * shares), "")
        write(axes, texts, shares > 0.5, 8)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(wrapped(title, figure.get_figwidth() - 1.0))
    figure.colorbar(image, ax=axes, label="share of the true class")
    return figure


def _longest(names: Sequence[str], size: float = 10.0) -> float:
    """Return about the length in inches of the longest name in a font of a size in points."""
    return max(map(cell_len, names), default=0) * CHARACTER * size / 72


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
    is_upright = _longest(names, size) + 0.04 > inches / max(1, len(names))
    step = max(1, ceil(line * len(names) / inches)) if is_upright else 1
    shown = range(0, len(names), step)
    axes.set_xticks(
        shown, [names[k] for k in shown], rotation=90 if is_upright else 0, fontsize=size
    )


def wrapped(text: str, inches: float) -> str:
    """Return a title in at most three lines that fit into a width.

    Args:
        text: The title.
        inches: Width of the figure.
    """
    lines = wrap(one_line(text), max(16, int(inches * 72 / (12 * CHARACTER))))
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][:-3]}..."])
