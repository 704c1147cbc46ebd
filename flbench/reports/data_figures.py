"""Pictures of data, classes and clients: partitions, networks, confusion matrices, and scores."""

from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final
from unicodedata import combining, east_asian_width

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flbench.core.text import one_line
from flbench.reports.picture import Picture, in_legend, literal, plain, short

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.data.federation import Federation

MOST_NAMED: Final = 30
"""Clients whose names a picture of all clients shows."""
CHARACTER: Final = 0.6  # mean width of a character, as a share of the font's size
LINE: Final = 1.25  # height of a line, as a share of the font's size
WIDE: Final = "@MWmw%"  # letters that need almost twice the mean width


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
    own, labels = [short(name) for name in names], [short(name) for name in client_names]
    if shifts:
        called = labels or [str(client) for client in range(clients)]
        labels = [short(f"{name}, {what}") for name, what in zip(called, shifts, strict=True)]
    inner = (min(9.5, 0.25 * classes), min(10.5, 0.16 * clients))
    beside = max(map(width, labels), default=0.0) if clients <= MOST_NAMED else 0.0
    below = height(own, inner[0]) if classes <= 20 else 0.0
    size = (inner[0] + max(2.5, 1.7 + beside), inner[1] + max(1.5, 1.1 + below))
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(counts, 0)
    norm = LogNorm(1, max(10, int(counts.max())))
    image = axes.imshow(shown, aspect="auto", cmap="viridis", norm=norm, interpolation="nearest")
    axes.set(xlabel="class", ylabel="client")
    if classes <= 20:
        name_places(axes, own, inner[0])
    if clients <= MOST_NAMED:
        axes.set_yticks(range(clients), labels or None)
    axes.set_title(wrapped(f"{dataset}: {clients} clients", size[0] - 1.0))
    figure.colorbar(image, ax=axes, label="training samples", format="{x:g}")
    return figure


@literal
def topology(
    graph: "Tensor",
    rows: "Tensor",
    positions: NDArray[np.float64],
    title: str,
    client_names: Sequence[str] = (),
) -> Picture:
    """Draw a network of clients, and its mixing weights beside it.

    A link in one direction is an arrow towards the client that mixes. Connected components have
    different colours.

    Args:
        graph: [N, N] bool; `graph[i, j]` is true if client j sends its model and client i mixes it.
        rows: [N, N] mixing weights; row i belongs to the client i that mixes.
        positions: [N, 2] position of each client in the figure.
        title: Title of the figure.
        client_names: Names of the N clients, shown for at most `MOST_NAMED`; empty for clients
            without names.
    """
    from flbench.algorithms.shared.topology import components

    clients = len(graph)
    labels = [short(name, 14) for name in client_names] if clients <= MOST_NAMED else []
    figure = Picture(figsize=(10.0, 6.0 if labels else 5.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    links = graph.numpy()
    both = np.argwhere(np.triu(links & links.T))
    left.add_collection(
        LineCollection(list(positions[both]), colors="0.6", linewidths=0.8, zorder=1)
    )
    mixes, sends = np.nonzero(links & ~links.T)
    if len(mixes):
        way = positions[mixes] - positions[sends]
        length = np.linalg.norm(way, axis=1, keepdims=True)
        # Arrows end at the edge of the client's disc, so that their heads are visible.
        way *= np.maximum(0.1, 1 - 0.03 * np.ptp(positions) / length)
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.002}
        left.quiver(*positions[sends].T, *way.T, color="0.6", headwidth=6, zorder=1, **arrows)
    part = np.zeros(clients, dtype=int)
    for number, members in enumerate(components(links)):
        part[members] = number
    size = float(np.clip(4000 / clients, 12, 160))
    left.scatter(*positions.T, c=part % 10, cmap="tab10", vmin=0, vmax=9, s=size, zorder=2)
    if clients <= 50:
        for client, place in enumerate(positions):
            left.annotate(str(client), place, ha="center", va="center", fontsize=6, color="white")
    for label, place in zip(labels, positions if labels else (), strict=True):
        left.annotate(
            label,
            place,
            xytext=(0, -9),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7,
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.5},
        )
    left.set_aspect("equal")
    left.margins(0.08)
    left.axis("off")
    shown = np.ma.masked_equal(rows.numpy(), 0.0)
    aspect = "auto" if labels else "equal"  # rotated names need a part of the height
    image = right.imshow(shown, cmap="viridis", vmin=0.0, interpolation="nearest", aspect=aspect)
    right.set(xlabel="client that sends", ylabel="client that mixes")
    if labels:
        right.set_xticks(range(clients), labels, rotation=90, fontsize=7)
        right.set_yticks(range(clients), labels, fontsize=7)
    else:
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=right, label="weight")
    figure.suptitle(wrapped(title, 10.0))
    return figure


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
    deep = max(3.6, 2.8 + height(own, wide - 0.7))
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
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    side = min(12.0, 2.5 + 0.36 * count)
    labels = [short(name) for name in names]
    inner = side - 1.3
    beside = max(map(width, labels), default=0.0) if count <= 40 else 0.0
    below = height(labels, inner) if count <= 40 else 0.0
    size = (max(side + 1.0, inner + 1.9 + beside), max(side, inner + 1.5 + below))
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if count <= 40:
        name_places(axes, labels, inner)
        axes.set_yticks(range(count), labels)
    if count <= 15:
        for row, column in np.argwhere(counts > 0):
            share = shares[row, column]
            color = "white" if share > 0.5 else "black"
            axes.text(
                column, row, f"{100 * share:.0f}", ha="center", va="center", color=color, size=8
            )
    axes.set(xlabel="predicted class", ylabel="true class", title=wrapped(title, size[0] - 1.0))
    figure.colorbar(image, ax=axes, label="share of the true class")
    return figure


@literal
def clients(
    sizes: NDArray[np.integer[Any]],
    values: NDArray[np.floating[Any]],
    labels: Sequence[str],
    metric: str,
    title: str,
) -> Picture:
    """Draw a metric of each client against its number of training samples.

    Args:
        sizes: [N] training samples.
        values: [N] values of the metric; NaN for a client without a value.
        labels: Names or numbers of the N clients, printed for at most 40 clients.
        metric: Name of the metric.
        title: Title of the figure.
    """
    figure = Picture(figsize=(7.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(sizes, values, s=24)
    known = ~np.isnan(values)
    if len(labels) <= 40:
        for x, y, label in zip(sizes[known], values[known], np.array(labels)[known], strict=True):
            axes.annotate(
                short(label),
                (x, y),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
                color="0.35",
            )
    if known.any():
        mean = float(values[known].mean())
        axes.axhline(mean, color="0.5", linestyle="--", linewidth=1, label=f"mean {mean:.3f}")
        axes.legend(frameon=False, loc="lower right")
    axes.set(xlabel="training samples", ylabel=metric, title=wrapped(title, 7.0))
    if ((values[known] >= 0) & (values[known] <= 1)).all():
        axes.set(ylim=(-0.02, 1.05))
    plain(axes)
    return figure


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


def wrapped(text: str, inches: float) -> str:
    """Return a title in at most three lines that fit into a width.

    Args:
        text: The title.
        inches: Width of the figure.
    """
    lines = wrap(one_line(text), max(16, int(inches * 72 / (12 * CHARACTER))))
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][:-3]}..."])
