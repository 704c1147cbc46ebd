"""Figures of a study: trials, their scores, and the importance of parameters."""

import textwrap
from collections.abc import Sequence
from math import ceil
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from flbench.reports.picture import Picture, literal
from flbench.results.study_folder import Trial, best_trial
from flbench.tuning.search_space import Parameter, shown

UNSET = -0.14  # position on an axis of a trial that lacks the parameter
APART = 0.085  # smallest distance of two labels, as a share of an axis
WIDTH = 9.0  # inches
BLUE, RED = "#3b6ea5", "#c0392b"


@literal
def parallel(axes: Sequence[Parameter], trials: Sequence[Trial], metric: str) -> Figure:
    """Draw parallel coordinates: a line for each trial through its parameters to its score.

    The best finished trial is bold, unfinished trials are dashed. The line of a trial that lacks a
    parameter passes below the parameter's axis. Trials without a score are left out.
    """
    drawn = sorted(_scored(trials), key=lambda item: item[1])
    axes = [
        axis.extended([trial.params[axis.path] for trial in trials if axis.path in trial.params])
        for axis in axes
    ]
    low, high = drawn[0][1], drawn[-1][1]
    wide = 0.0 if low < high else 0.01  # an axis has a length also for a single score
    last = Parameter(metric, low - wide, high + wide)
    figure = Picture(figsize=(WIDTH, 3.9), layout="constrained")
    plot = figure.add_subplot()
    # A colour map without its pale end: all its colours have a contrast of 3 on white.
    dark = mpl.colormaps["viridis_r"](np.linspace(0.4, 1, 256))
    norm, colours = Normalize(last.low, last.high), LinearSegmentedColormap.from_list("dark", dark)
    xs = range(len(axes) + 1)
    lines = [
        [*zip(xs, (*(_height(axis, trial) for axis in axes), float(norm(score))), strict=True)]
        for trial, score in drawn
    ]
    shades = [colours(norm(score)) for _, score in drawn]
    dashes = ["-" if trial.state == "finished" else "--" for trial, _ in drawn]
    width = 1.2 if len(lines) <= 40 else 0.7
    plot.add_collection(
        LineCollection(lines, colors=shades, linestyles=dashes, linewidths=width, zorder=2)
    )
    if (won := best_trial(trials)) is not None:
        bold = [trial for trial, _ in drawn].index(won)
        plot.plot(*zip(*lines[bold], strict=True), "o-", color=shades[bold], lw=3.2, ms=5, zorder=4)
    for x, axis in zip(xs, [*axes, last], strict=True):
        plot.plot([x, x], [0, 1], color="0.25", linewidth=1, zorder=3)
        for place, word in _ticks(axis):
            plot.plot([x - 0.02, x], [place, place], color="0.25", linewidth=1, zorder=3)
            _mark(plot, x, place, word)
        off = [
            trial.params.get(axis.path, ...) for trial, _ in drawn if _height(axis, trial) == UNSET
        ]
        if axis is not last and off:
            _mark(plot, x, UNSET, "null" if None in off else "not set")
    plot.set_xlim(-0.45, len(axes) + 0.35)
    plot.set_xticks(xs, [*_names(axes), metric.replace(" ", "\n", 1)], fontsize=8)
    plot.xaxis.tick_top()
    plot.tick_params(length=0)
    plot.set_yticks([])
    plot.spines[:].set_visible(False)
    return figure


@literal
def scatter(axes: Sequence[Parameter], trials: Sequence[Trial], metric: str) -> Figure:
    """Draw the score over each parameter: the best trial as a star, unfinished ones hollow."""
    won = best_trial(trials)
    wide = min(4, max(1, len(axes)))
    high = max(1, ceil(len(axes) / wide))
    size = (2.3 * wide if wide > 1 else 3.4, 2.1 * high)
    figure = Picture(figsize=size, layout="constrained")
    plots = figure.subplots(high, wide, sharey=True, squeeze=False).ravel()
    for plot, axis, name in zip(plots, axes, _names(axes), strict=False):
        known: list[Any] = list(axis.choices)
        for trial, score in _scored(trials):
            value = trial.params.get(axis.path)
            if axis.path not in trial.params or (value is None and not known):
                continue
            if axis.choices and value not in known:  # a default beside the choices
                known.append(value)
            style: dict[str, Any] = {"marker": "o", "markersize": 4.5, "color": BLUE}
            if trial is won:
                style = {"marker": "*", "markersize": 11, "color": RED, "zorder": 3}
            elif trial.state != "finished":
                style["markerfacecolor"] = "none"
            plot.plot([known.index(value) if known else value], [score], **style)
        if known:
            plot.set_xticks(range(len(known)), map(shown, known))
            plot.set_xlim(-0.5, len(known) - 0.5)
        elif axis.log:
            plot.set_xscale("log")
            plot.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            plot.xaxis.set_major_formatter("{x:g}")
            plot.xaxis.set_minor_formatter(NullFormatter())
        plot.margins(y=0.12)
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
        plot.tick_params(labelsize=7)
        plot.tick_params(axis="x", rotation=40 if sum(map(len, map(shown, known))) > 22 else 0)
        plot.set_xlabel(name.replace("\n", ""), fontsize=8)
    for plot in plots[len(axes) :]:
        plot.set_visible(False)
    for plot in plots[::wide]:
        plot.set_ylabel(metric, fontsize=8)
    return figure


def _scored(trials: Sequence[Trial]) -> list[tuple[Trial, float]]:
    """Return the trials that have a score, with their scores."""
    return [(trial, trial.score) for trial in trials if trial.score is not None]


def _height(axis: Parameter, trial: Trial) -> float:
    """Return the position of a trial on an axis; `UNSET` without one."""
    place = axis.position(trial.params[axis.path]) if axis.path in trial.params else None
    return UNSET if place is None else place


def _mark(plot: Axes, x: float, y: float, word: str) -> None:
    """Write a label to the left of a point on an axis."""
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    plot.annotate(word, (x - 0.04, y), ha="right", va="center", fontsize=7, bbox=box, zorder=5)


def _ticks(axis: Parameter) -> list[tuple[float, str]]:
    """Return positions and labels of an axis: its ends, and round numbers if there is room."""
    if axis.choices:
        return [(float(axis.position(value) or 0.0), shown(value)) for value in axis.choices]
    scales = (
        (LogLocator(), LogLocator(subs=(1.0, 2.0, 5.0)))  # decades take precedence
        if axis.log
        else (MaxNLocator(5, integer=axis.whole),)
    )
    inside = np.concatenate([scale.tick_values(axis.low, axis.high) for scale in scales])
    taken: list[tuple[float, str]] = []
    for value in (axis.low, axis.high, *map(float, inside)):
        place = axis.position(value)
        room = place is not None and all(abs(place - other) >= APART for other, _ in taken)
        if place is not None and room and -1e-9 <= place <= 1 + 1e-9:
            taken.append((place, f"{value:.3g}"))
    return taken


def _names(axes: Sequence[Parameter]) -> list[str]:
    """Return the last part of each key, or the last two parts if the last ones are equal."""
    last = [axis.path.split(".")[-1] for axis in axes]
    names = [
        ".".join(axis.path.split(".")[-2:]) if last.count(name) > 1 else name
        for axis, name in zip(axes, last, strict=True)
    ]
    return [textwrap.fill(one.replace("_", "_ "), 13).replace("_ ", "_") for one in names]
