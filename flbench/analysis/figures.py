"""Figures of a comparison. A method has the same colour, dashes and marker in all of them."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import cycle, islice
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from flbench.analysis.blocks import has_rank_claims
from flbench.analysis.progress import SPLITS
from flbench.analysis.statistics import Across
from flbench.analysis.tables import CLASS_SCORES, Analysis
from flbench.core.learned import Learned, LearnedPoints, LearnedTable
from flbench.core.text import one_line
from flbench.reports import data_figures
from flbench.reports.picture import Picture, in_legend, short, width
from flbench.reports.tables import size

# Colours that colour-blind people tell apart, all with a contrast of at least 3 on white.
COLOURS: Final = ("#0072b2", "#d55e00", "#117733", "#aa4499", "#222222", "#8a6d00", "#b5485d")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Final = ("-", "--", "-.", ":")
MOST_CLASSES: Final = 100  # in a heat map
MOST_LABELS: Final = 70  # names of classes below a heat map
MOST_SCATTERED: Final = 4  # methods in a scatter plot of clients
LABEL: Final = 8  # size of labels of points
WIDTH: Final = 9.0  # inches
COLUMN: Final = 3.4  # inches: the width of a column of a paper
SMALL: Final = 7.5  # size of the letters in a column
MOST_RARE: Final = 8  # classes whose scores have intervals in a picture
MOST_BESIDE: Final = 6  # methods in that picture

_width: ContextVar[float] = ContextVar("width", default=WIDTH)
"""Width of the figures that are drawn: WIDTH for a page, COLUMN for a paper."""

Box = tuple[float, float, float, float]
"""Left, lower, right and upper edge of a box."""


def in_column(draw: Callable[[], "Figure | None"]) -> "Figure | None":
    """Return what a function draws at the width of a column, with small letters.

    Panels that stand beside each other on a page are below each other in a column.
    """
    token = _width.set(COLUMN)
    try:
        with mpl.rc_context({"font.size": SMALL, "lines.markersize": 4}):
            return draw()
    finally:
        _width.reset(token)


def _figure(high: float) -> Picture:
    """Return an empty figure of the width that is wanted."""
    return Picture(figsize=(_width.get(), high), layout="constrained")


def _rows(count: int) -> float:
    """Return the height of rows of methods, which are lower in a column."""
    return count * (0.3 if _width.get() == WIDTH else 0.19)


def _panels(count: int, high: float, rows: int = 1, **options: Any) -> tuple[Picture, list[Axes]]:
    """Return a figure with panels, row by row; in a column each row becomes a column of panels.

    Args:
        count: Number of panels in a row.
        high: Height of a figure of one row.
        rows: Number of rows.
        options: Arguments of `Figure.subplots`.
    """
    if _width.get() < WIDTH:
        figure = _figure(0.55 * high * count + 0.4)
        grid = figure.subplots(count, rows, squeeze=False, **options).T
    else:
        figure = _figure(high if rows == 1 else 0.8 * high * rows)
        grid = figure.subplots(rows, count, squeeze=False, **options)
    return figure, list(grid.ravel())


def leaders(analysis: Analysis, place: str) -> Figure:
    """Draw the metric of each method: mean, 95 % interval, and the repetitions as small dots."""
    rows = _of(analysis.leaderboard, place).reset_index(drop=True)
    figure = _figure(1.1 + _rows(len(rows)))
    axes = figure.add_subplot()
    for k, method in enumerate(rows["method"]):
        row, style = rows.loc[k], _style(analysis, method)
        values = [
            one.test[analysis.comparison.metric] for one in analysis.comparison.at(place, method)
        ]
        axes.plot(values, [k] * len(values), ".", color=style["color"], markersize=5, zorder=3)
        if not np.isnan(row["low"]):
            axes.plot([row["low"], row["high"]], [k, k], color=style["color"], lw=2, zorder=2)
        axes.plot(
            [row["mean"]], [k], marker=style["marker"], color=style["color"], ms=8, mfc="white"
        )
    _name_rows(axes, analysis, rows["method"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(f"test {_words(analysis)}")
    _plain(axes)
    return figure


def recalls(analysis: Analysis, place: str) -> Figure:
    """Draw a heat map of the recall by method (rows) and class (columns), rarest class first."""
    return scores(analysis, place, "recall")


def scores(analysis: Analysis, place: str, score: str) -> Figure:
    """Draw a heat map by method (rows) and class (columns), rarest class first.

    Args:
        analysis: The tables.
        place: Label of the place.
        score: `recall`, `precision` or `f1`.
    """
    return _heat_map(analysis, place, score)


def recall_gains(analysis: Analysis, place: str) -> Figure:
    """Draw a heat map of recall minus the baseline's; dots mark intervals without zero."""
    return _heat_map(analysis, place, "difference")


def _heat_map(analysis: Analysis, place: str, what: str) -> Figure:
    table = _of(analysis.classes, place)
    baseline = analysis.comparison.baseline
    methods = [
        name
        for name in analysis.comparison.methods
        if name in set(table["method"]) and not (what == "difference" and name == baseline)
    ]
    order = table.drop_duplicates("class").sort_values(["train_support", "class"])
    order = order.head(MOST_CLASSES)
    classes, names = order["class"].tolist(), order["name"].astype(str).tolist()

    def grid(column: str) -> NDArray[np.float64]:
        wide = table.pivot_table(index="method", columns="class", values=column, dropna=False)
        found: NDArray[np.float64] = wide.reindex(index=methods, columns=classes).to_numpy(float)
        return found

    values = grid(what)
    deep = 1.5 + _rows(len(methods)) + (0.5 if len(names) <= MOST_LABELS else 0.0)
    figure = _figure(deep)
    axes = figure.add_subplot()
    shown = np.ma.masked_invalid(values)
    if what != "difference":
        image = axes.imshow(shown, aspect="auto", cmap="cividis", vmin=0, vmax=1)
        label = CLASS_SCORES[what]
    else:
        most = float(max(0.05, np.nanmax(np.abs(values), initial=0.0)))
        norm = TwoSlopeNorm(0, -most, most)
        image = axes.imshow(shown, aspect="auto", cmap="PuOr_r", norm=norm)
        label = f"recall minus\n{_label(analysis, baseline)}'s"
        low, high = grid("low"), grid("high")
        with np.errstate(invalid="ignore"):
            sure = (low > 0) | (high < 0)
        axes.plot(*np.nonzero(sure.T), ".", color="black", markersize=4)
    _name_rows(axes, analysis, methods)
    labels = [
        f"{'*' if is_rare else ''}{'+' if is_confusable else ''}"
        for is_rare, is_confusable in zip(order["rare"], order["confusable"], strict=True)
    ]
    if len(names) <= MOST_LABELS:
        labels = [f"{short(name, 28)}{mark}" for name, mark in zip(names, labels, strict=True)]
    places = [k for k, name in enumerate(labels) if name]  # of many classes, those with a mark
    labels = [labels[k] for k in places]
    room = 0.65 * _width.get() / max(1, len(names))  # beside the labels of methods and the colours
    upright = max((width(label, 7) for label in labels), default=0.0) > room
    axes.set_xticks(places, labels, rotation=90 if upright else 0, fontsize=7)
    axes.set_xlabel("class, fewest training samples first")
    figure.colorbar(image, ax=axes, label=label)
    return figure


def client_accuracy(analysis: Analysis, place: str) -> Figure:
    """Draw the share of clients below each accuracy, over all repetitions, a line per method."""
    table = _of(analysis.clients, place)
    figure = _figure(3.6)
    axes = figure.add_subplot()
    for method in _methods(analysis, table):
        values = table[table["method"] == method]["accuracy"].dropna()
        if len(values):
            style = _line(analysis, method)
            axes.ecdf(values, label=in_legend(_label(analysis, method)), **style)
    axes.set(xlabel="test accuracy of a client", ylabel="share of clients", xlim=(-0.02, 1.02))
    _plain(axes)
    _legend(figure, axes)
    return figure


def client_gains(analysis: Analysis, place: str) -> Figure | None:
    """Draw each client's gain over `local` against its samples and its skew.

    Returns:
        The figure, of the first four methods of the leaderboard; None without runs of `local`.
    """
    table = _of(analysis.clients, place)
    ranked = methods_with_gains(analysis, place)
    if not ranked:
        return None
    figure, (left, right) = _panels(2, 3.6, sharey=True)
    for method in ranked[:MOST_SCATTERED]:
        mine = table[table["method"] == method]
        style = _style(analysis, method)
        style = {"color": style["color"], "marker": style["marker"], "s": 14, "alpha": 0.75}
        left.scatter(
            mine["train_size"], mine["gain"], label=in_legend(_label(analysis, method)), **style
        )
        right.scatter(mine["skew"], mine["gain"], **style)
    left.set(xlabel="training samples", ylabel="accuracy minus that of local")
    right.set(xlabel="skew: distance of class shares from all clients'")
    for axes in (left, right):
        axes.axhline(0, color="0.4", lw=1)
        _plain(axes)
    _legend(figure, left)
    return figure


def methods_with_gains(analysis: Analysis, place: str) -> list[str]:
    """Return the methods of a place with which some clients gain or lose, best first."""
    table = _of(analysis.clients, place)
    return [m for m in _of(analysis.leaderboard, place)["method"] if _gains(table, m).any()]


def new_clients(analysis: Analysis, place: str) -> Figure | None:
    """Draw the scores of clients that join after the training, over the epochs of their training.

    Returns:
        The figure; None if no run has such clients.
    """
    table = _of(analysis.new_clients, place)
    if not len(table):
        return None
    figure = _figure(3.8)
    axes = figure.add_subplot()
    for method in _methods(analysis, table):
        mine, style = table[table["method"] == method], _line(analysis, method)
        marker = {"marker": _style(analysis, method)["marker"], "markersize": 5}
        axes.plot(
            mine["epochs"],
            mine["mean"],
            label=in_legend(_label(analysis, method)),
            **(style | marker),
        )
        axes.fill_between(
            mine["epochs"], mine["low"], mine["high"], color=style["color"], alpha=0.12, lw=0
        )
        axes.plot(mine["epochs"], mine["seen"], color=style["color"], ls=":", lw=1, alpha=0.8)
    metric = analysis.comparison.at(place)[0].run.config.client_metric.replace("_", " ")
    axes.set(
        xlabel="epochs on the client's own training part", ylabel=f"test {metric}, new clients"
    )
    axes.set_xticks(sorted(set(table["epochs"])))
    _plain(axes)
    _legend(figure, axes)
    return figure


def convergence(analysis: Analysis, place: str) -> Figure | None:
    """Draw the metric by rounds, bytes and seconds: mean of the repetitions, and their range.

    The upper panels are those of the validation parts, if there are any, the lower ones those of
    the test parts. A line ends with the last round that all repetitions of the method have.

    Returns:
        The figure; None for a metric that runs do not have by round.
    """
    table = _of(analysis.curves, place)
    splits = [split for split in SPLITS if (table["split"] == split).any()]
    if not splits:
        return None
    figure, grid = _panels(3, 3.4, rows=len(splits), sharey=True)
    for row, split in enumerate(splits):
        panels = grid[3 * row : 3 * row + 3]
        _curves(analysis, table[table["split"] == split], panels)
        panels[0].set(xlabel="round", ylabel=f"{split} {_words(analysis)}")
        panels[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panels[1].set(xlabel="bytes sent so far")
        _log_bytes(panels[1], table["bytes"], most=4)
        panels[2].set(xlabel="seconds so far")
        if _width.get() < WIDTH:
            for axes in panels[1:]:
                axes.set(ylabel=f"{split} {_words(analysis)}")
            panels[1].tick_params(axis="x", labelsize=6)
    for axes in grid:
        _plain(axes)
    _legend(figure, grid[0])
    return figure


def _curves(analysis: Analysis, table: pd.DataFrame, panels: Sequence[Axes]) -> None:
    """Draw the curves of a split over rounds, bytes and seconds."""
    for method in _methods(analysis, table):
        mine = table[table["method"] == method]
        # Runs that ended early would leave the mean of later rounds to the others.
        held = mine.groupby("round")["repetition"].transform("nunique")
        by_round = mine[held == mine["repetition"].nunique()].groupby("round")
        mean = by_round[["value", "bytes", "seconds"]].mean()
        low, high = by_round["value"].min(), by_round["value"].max()
        style = _line(analysis, method)
        along = (mean.index.to_numpy(), mean["bytes"].to_numpy(), mean["seconds"].to_numpy())
        for axes, x in zip(panels, along, strict=True):
            axes.plot(x, mean["value"], label=in_legend(_label(analysis, method)), **style)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)


def class_intervals(analysis: Analysis, place: str) -> Figure | None:
    """Draw recall and F1 of the rarest classes with their 95 % intervals, a mark per method.

    Returns:
        The figure, of the first six methods of the leaderboard; None if there are no intervals.
    """
    table = _of(analysis.classes, place)
    scores = ("recall", "f1")
    if table[[f"{score}_low" for score in scores]].isna().all(axis=None):
        return None
    order = table.drop_duplicates("class").sort_values(["train_support", "class"]).head(MOST_RARE)
    ranked = _of(analysis.leaderboard, place)["method"]
    methods = [one for one in ranked if one in set(table["method"])][:MOST_BESIDE]
    figure, panels = _panels(2, 3.4, sharey=True)
    steps = np.linspace(-0.3, 0.3, len(methods)) if len(methods) > 1 else [0.0]
    for axes, score in zip(panels, scores, strict=True):
        for method, step in zip(methods, steps, strict=True):
            mine = table[table["method"] == method].set_index("class").reindex(order["class"])
            style = _style(analysis, method)
            middle = mine[score].to_numpy(float)
            ends = np.stack([middle - mine[f"{score}_low"], mine[f"{score}_high"] - middle])
            axes.errorbar(
                np.arange(len(order)) + step,
                middle,
                yerr=np.nan_to_num(ends),
                label=in_legend(_label(analysis, method)),
                fmt=style["marker"],
                color=style["color"],
                ms=4,
                lw=1.2,
            )
        names = [
            f"{short(str(name), 16)}{'*' if rare else ''}{'+' if confusable else ''}"
            for name, rare, confusable in zip(
                order["name"], order["rare"], order["confusable"], strict=True
            )
        ]
        upright = max(map(len, names), default=0) > 5
        axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0, fontsize=7)
        axes.set(ylabel=CLASS_SCORES[score], ylim=(-0.03, 1.03))
        _plain(axes)
    _legend(figure, panels[0])
    return figure


def settings(analysis: Analysis) -> Figure | None:
    """Draw a heat map of the metric by method (rows) and place (columns).

    The number in a field is the mean over repetitions, its colour the distance from the best mean
    of the place.

    Returns:
        The figure; None for a single place or a single method.
    """
    comparison = analysis.comparison
    if len(comparison.places) < 2 or len(comparison.methods) < 2:
        return None
    board = analysis.leaderboard
    methods, places = list(comparison.methods), list(comparison.places)
    wide = board.pivot(index="method", columns="place", values="mean").loc[methods, places]
    values = wide.to_numpy(float)
    gaps = np.nanmax(values, axis=0) - values
    figure = _figure(1.5 + _rows(len(methods)))
    axes = figure.add_subplot()
    most = float(np.nanmax(gaps, initial=0.0)) or 1.0
    image = axes.imshow(np.ma.masked_invalid(gaps), aspect="auto", cmap="cividis_r", vmax=most)
    room = 72 * 0.62 * _width.get() / len(places)  # of a field, in points
    font = min(SMALL, room / (5 * 0.62))
    for (row, column), value in np.ndenumerate(values) if font >= 4 else ():
        if not np.isnan(value):
            is_dark = gaps[row, column] > 0.5 * most
            axes.text(
                column,
                row,
                f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}",
                ha="center",
                va="center",
                fontsize=font,
                color="white" if is_dark else "black",
            )
    _name_rows(axes, analysis, methods)
    names = [f"{k + 1}: {short(place, 40)}" for k, place in enumerate(places)]
    is_short = max(map(len, names)) * 0.62 * 7 < room
    axes.set_xticks(
        range(len(places)),
        names,
        rotation=0 if is_short else 30,
        ha="center" if is_short else "right",
        rotation_mode="anchor",
        fontsize=7,
    )
    figure.colorbar(image, ax=axes, label="below the best mean")
    return figure


def prices(analysis: Analysis, place: str) -> Figure:
    """Draw the metric against bytes and seconds; a line joins the methods of the Pareto front."""
    rows = _of(analysis.leaderboard, place)
    figure, panels = _panels(2, 3.8, sharey=True)
    for axes, what in zip(panels, ("bytes", "seconds"), strict=True):
        front = pareto(rows[what].to_list(), rows["mean"].to_list())
        chain = rows.iloc[front].sort_values(what)
        axes.plot(chain[what], chain["mean"], color="0.45", lw=1, ls=":", zorder=1)
        for row in rows.to_dict("records"):
            style = _style(analysis, row["method"])
            axes.plot(
                [row[what]],
                [row["mean"]],
                marker=style["marker"],
                color=style["color"],
                ms=8,
                ls="none",
                label=in_legend(_label(analysis, row["method"])),
            )
        _plain(axes)
    panels[0].set(xlabel="bytes of a run", ylabel=f"test {_words(analysis)}")
    _log_bytes(panels[0], rows["bytes"])
    panels[1].set(xlabel="seconds of a run")
    _legend(figure, panels[0])
    return figure


def pareto(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Return the positions of those that nothing else beats in cost and value.

    >>> pareto([1, 2, 3, 2], [0.5, 0.7, 0.6, 0.6])
    [0, 1]
    """
    pairs = list(zip(costs, values, strict=True))
    return [
        k
        for k, (cost, value) in enumerate(pairs)
        if not any(
            other_cost <= cost and other >= value and (other_cost, other) != (cost, value)
            for other_cost, other in pairs
        )
    ]


def partition(analysis: Analysis, place: str) -> Figure | None:
    """Draw the training samples by client and class of the first repetition; None if unknown."""
    entry = analysis.comparison.at(place)[0]
    counts = analysis.train_counts.get((place, entry.repetition))
    if counts is None:
        return None
    classes = _of(analysis.classes, place).drop_duplicates("class").sort_values("class")
    names = [str(name) for name in classes["name"]]
    clients = _client_names(analysis, place)
    if len(clients) != len(counts):
        clients = []
    return data_figures.partition_table(counts, names, entry.run.summary["dataset"], clients)


def _client_names(analysis: Analysis, place: str) -> list[str]:
    """Return the names of the clients of the first repetition; empty if they have none."""
    table = _of(analysis.clients, place)
    first = table[table["repetition"] == table["repetition"].min()].drop_duplicates("client")
    names = first.sort_values("client")["name"].astype(str)
    return names.to_list() if (names != "").any() else []


def holdings(analysis: Analysis, place: str) -> Figure:
    """Draw training samples, classes and skew of the clients of the first repetition, sorted.

    Bars of at most `MOST_NAMED` clients have the names of the clients, if they have any.
    """
    table = _of(analysis.clients, place)
    first = table[table["repetition"] == table["repetition"].min()].drop_duplicates("client")
    names = first["name"].astype(str).map(lambda name: short(name, 14))
    is_named = bool((names != "").any()) and len(names) <= data_figures.MOST_NAMED
    figure, panels = _panels(3, 3.4 if is_named else 2.6)
    for axes, what, label in zip(
        panels,
        ("train_size", "classes", "skew"),
        ("training samples", "classes", "skew"),
        strict=True,
    ):
        order = np.argsort(-first[what].to_numpy(float), kind="stable")
        values = first[what].to_numpy(float)[order]
        axes.bar(range(len(values)), values, color=COLOURS[0], width=0.9)
        axes.set(xlabel="clients, sorted", ylabel=label)
        if is_named:
            axes.set_xticks(range(len(values)), names.to_numpy()[order], rotation=90, fontsize=7)
        else:
            axes.set_xticks([])
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=what != "skew"))
        _plain(axes)
    return figure


def learned(analysis: Analysis, place: str, one: Learned) -> Figure:
    """Draw what a method of a place has learned: a table as a heat map, points as a map."""
    classes = _of(analysis.classes, place).drop_duplicates("class").sort_values("class")
    names = {
        "class": [short(name, 14) for name in classes["name"]],
        "client": [short(name, 14) for name in _client_names(analysis, place)],
    }
    return _points(one, names) if isinstance(one, LearnedPoints) else _table(one, names)


def _table(one: LearnedTable, names: dict[str, list[str]]) -> Figure:
    values = np.asarray(one.values)
    rows, columns = values.shape
    deep = min(8.0, max(1.6, 1.3 + 0.2 * rows))
    wide = min(_width.get(), 2.6 + 0.22 * columns + 0.1 * max(map(len, one.labels), default=0))
    figure = Picture(figsize=(max(min(4.5, _width.get()), wide), deep), layout="constrained")
    axes = figure.add_subplot()
    some = values[np.isfinite(values)]
    low, high = (some.min(), some.max()) if len(some) else (0.0, 1.0)
    if low < 0 < high:
        style: dict[str, Any] = {"cmap": "PuOr_r", "norm": TwoSlopeNorm(0, low, high)}
    else:
        style = {"cmap": "cividis", "vmin": low, "vmax": high}
    image = axes.imshow(
        np.ma.masked_invalid(values), aspect="auto", interpolation="nearest", **style
    )
    column_names = [short(name, 40) for name in one.labels] or names.get(one.columns, [])
    for axis, label, count, own in (
        (axes.yaxis, one.rows, rows, names.get(one.rows, [])),
        (axes.xaxis, one.columns, columns, column_names),
    ):
        axis.set_label_text(short(label, 40))
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if len(own) == count <= MOST_LABELS:
            axis.set_ticks(range(count), own, fontsize=7)
    if len(column_names) == columns and max(map(len, column_names)) > 2:
        axes.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=axes)
    return figure


def _points(one: LearnedPoints, names: dict[str, list[str]]) -> Figure:
    flat, classes = np.asarray(one.values), np.asarray(one.classes)
    is_shared = np.asarray(one.is_shared)
    figure = _figure(5.6)
    axes = figure.add_subplot()
    colours = colormaps["turbo"](np.linspace(0.05, 0.95, max(2, len(names["class"]))))[classes]
    own, shared = ~is_shared, is_shared
    # The edge makes the light colours visible.
    style: dict[str, Any] = {"s": 14, "edgecolors": "0.4", "lw": 0.4}
    axes.scatter(flat[own, 0], flat[own, 1], c=colours[own], **style)
    axes.scatter(flat[shared, 0], flat[shared, 1], c=colours[shared], s=70, edgecolors="black")
    axes.set(xlabel="first principal component", ylabel="second principal component")
    _plain(axes)
    figure.draw_without_rendering()  # it settles where the points are
    labels = [names["class"][number] for number in classes[shared]]
    points = axes.transData.transform(flat) * 72 / figure.dpi
    corners = free(points[shared], labels, points[own])
    for label, position, corner in zip(labels, flat[shared], corners, strict=True):
        if corner is not None:
            axes.annotate(
                label,
                position,
                xytext=corner,
                textcoords="offset points",
                fontsize=LABEL,
                # The background keeps a label readable among many small points.
                bbox={"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.7},
            )
    return figure


def free(
    points: NDArray[np.float64], labels: Sequence[str], small: NDArray[np.float64]
) -> list[tuple[float, float] | None]:
    """Return where labels of points stand such that none covers another label or a point.

    Where there is the choice, a label does not cover small points either.

    Args:
        points: [P, 2], in points of 1/72 inch.
        labels: The P labels.
        small: [S, 2], small points without labels.

    Returns:
        Offset of each label's lower left corner from its point; None where there is no room.

    >>> none = np.zeros((0, 2))
    >>> free(np.array([[0.0, 0.0], [50.0, 0.0]]), ["a", "b"], none)
    [(6, 3), (6, 3)]
    >>> free(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), ["a", "b", "c"], none)
    [(6, 3), (6, -9), (-11.2, 3)]
    >>> free(np.array([[0.0, 0.0]]), ["a"], np.array([[8.0, 5.0]]))
    [(6, -9)]
    """
    found: list[tuple[float, float] | None] = []
    taken: list[Box] = []
    for k, (point, label) in enumerate(zip(points, labels, strict=True)):
        wide, high = 0.65 * LABEL * max(1, len(label)), LABEL
        others = np.delete(points, k, axis=0)
        possible: list[tuple[int, tuple[float, float], Box]] = []
        for corner in ((6, 3), (6, -9), (-6 - wide, 3), (-6 - wide, -9)):
            left, lower = point + corner
            box = (left, lower, left + wide, lower + high)
            if not _covered(others, box, 3) and not any(_overlap(box, other) for other in taken):
                possible.append((_covered(small, box, 1), corner, box))
        if not possible:
            found.append(None)
            continue
        _, offset, box = min(possible, key=lambda one: one[0])  # the first of equally good ones
        found.append(offset)
        taken.append(box)
    return found


def _covered(points: NDArray[np.float64], box: Box, margin: float) -> int:
    """Return how many points [P, 2] lie in a box or at most `margin` beside it."""
    left, lower, right, upper = box
    inside = (points > (left - margin, lower - margin)) & (
        points < (right + margin, upper + margin)
    )
    return int(inside.all(axis=1).sum())


def _overlap(one: Box, other: Box) -> bool:
    """Return whether two boxes overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def ranks(analysis: Analysis) -> Figure:
    """Draw the mean ranks over places; bars join methods that Nemenyi's test does not tell apart.

    Raises:
        ValueError: There is a single place.
    """
    across = _across(analysis)
    names = [str(name) for name in across.ranks.index]
    has_claims = has_rank_claims(analysis)
    below = 0.4 + 0.18 * len(across.groups) if has_claims else 0.0
    high = 0.9 + _rows(len(names)) + below
    figure = _figure(high)
    axes = figure.add_subplot()
    for k, (name, rank) in enumerate(zip(names, across.ranks, strict=True)):
        style = _style(analysis, name)
        axes.plot([1, rank], [k, k], color="0.8", lw=1, zorder=1)
        axes.plot([rank], [k], marker=style["marker"], color=style["color"], ms=8)
    level = len(names) - 0.4
    if has_claims:
        level = _critical(axes, across, names)
    _name_rows(axes, analysis, names)
    axes.set_ylim(level + 0.5, -0.6)
    axes.set_xlabel("mean rank over data sets and settings (1 is best)")
    _plain(axes)
    return figure


def _critical(axes: Axes, across: Across, names: Sequence[str]) -> float:
    """Draw what Nemenyi's test says below the ranks, and return how far down that reaches."""
    for k, group in enumerate(across.groups):
        ends = [float(across.ranks[group[0]]), float(across.ranks[group[-1]])]
        axes.plot(ends, [len(names) + 0.5 * k] * 2, color="black", lw=3, solid_capstyle="butt")
    left = 1.0
    level = len(names) + 0.5 * len(across.groups) + 0.4
    half = across.critical / 2
    axes.errorbar([left + half], [level], xerr=half, color="0.3", capsize=4)
    axes.annotate(
        f"critical difference {across.critical:.2f}",
        (left + across.critical, level),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )
    return level


def _across(analysis: Analysis) -> Any:
    if analysis.across is None:
        raise ValueError("there is a single place, so there are no ranks over places.")
    return analysis.across


def _of(table: pd.DataFrame, place: str) -> pd.DataFrame:
    return table[table["place"] == place]


def _methods(analysis: Analysis, table: pd.DataFrame) -> list[str]:
    """Return the methods of a table in their order."""
    have = set(table["method"])
    return [method for method in analysis.comparison.methods if method in have]


def _gains(table: pd.DataFrame, method: str) -> "pd.Series[bool]":
    """Return which clients of a method have a gain that is not zero."""
    mine = table[table["method"] == method]["gain"]
    return mine.notna() & (mine != 0)


def _style(analysis: Analysis, method: str) -> dict[str, Any]:
    """Return colour, dashes and marker of a method."""
    number = analysis.comparison.methods.index(method)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "ls": DASHES[number // len(COLOURS) % len(DASHES)] if number >= len(COLOURS) else "-",
    }


def _line(analysis: Analysis, method: str) -> dict[str, Any]:
    """Return the style of a line: methods differ in colour and dashes."""
    number = analysis.comparison.methods.index(method)
    dashes = next(islice(cycle(DASHES), number, None))
    return {"color": COLOURS[number % len(COLOURS)], "ls": dashes, "lw": 1.6}


def _name_rows(axes: Axes, analysis: Analysis, methods: Iterable[str]) -> None:
    """Write the labels of methods beside the rows 0, 1, ...; those of two lines are smaller."""
    labels = [_label(analysis, method) for method in methods]
    fontsize = 7.5 if any("\n" in label for label in labels) else None
    axes.set_yticks(range(len(labels)), labels, fontsize=fontsize)


def _label(analysis: Analysis, method: str) -> str:
    """Return a method's label, which no other method has, in at most two lines of 36 characters."""
    name = one_line(method)
    if len(name) <= 28:
        return name
    lines = wrap(name, 36)
    if len(lines) <= 2:
        return "\n".join(lines)
    # The beginnings of labels may be equal, so the method's number is added.
    number = analysis.comparison.methods.index(method) + 1
    return f"{lines[0]}\n{short(lines[1], 26)} (no. {number})"


def _words(analysis: Analysis) -> str:
    return analysis.comparison.metric.replace("_", " ")


def _plain(axes: Axes) -> None:
    """Hide the frame, and draw a pale grid behind the data."""
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _log_bytes(axes: Axes, values: "pd.Series[float]", most: int = 5) -> None:
    """Give the axis of bytes a logarithmic scale with a place for zero and at most `most` ticks."""
    positive = values[values > 0]
    if not len(positive):
        axes.set_xticks([0.0], ["0 B"])
        return
    least, largest = float(positive.min()), float(positive.max())
    begin = least / 3
    axes.set_xscale("symlog", linthresh=begin, linscale=0.4)
    has_zero = len(positive) < len(values)
    low, high = int(np.ceil(np.log10(least / 1.5))), int(np.floor(np.log10(largest * 1.5)))
    step = max(1, -(-(high - low + 1) // (most - has_zero)))
    ticks = [10.0**k for k in range(low, high + 1, step)]
    axes.set_xticks([0.0, *ticks] if has_zero else ticks)
    axes.set_xlim(-0.15 * begin if has_zero else least / 1.5, largest * 1.5)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: size(count).replace(".0 ", " ")))
    axes.tick_params(axis="x", labelsize=8)


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend below the panels."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        longest = max(len(line) for label in labels for line in label.split("\n"))
        is_wide = _width.get() == WIDTH
        columns = (5 if longest <= 28 else 3) if is_wide else max(1, 48 // (longest + 6))
        lines = sum(1 + label.count("\n") for label in labels) / columns
        # Many methods take the room that the panels need.
        wide, high = figure.get_size_inches()
        figure.set_size_inches(wide, high + max(0.0, lines - 2) * 0.17)
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(len(labels), columns),
            frameon=False,
            fontsize=8 if is_wide else 7,
        )
