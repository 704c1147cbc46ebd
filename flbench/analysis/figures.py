"""Pictures of a comparison. A method has the same colour, dashes and marker in all of them.

A picture is a function of the tables, a place and a width in inches. `PICTURES` has their names,
titles and captions.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from flbench.analysis.answer import words
from flbench.analysis.shown import at_place, has_rank_claims, ranked
from flbench.analysis.tables import CLASS_SCORES, Analysis
from flbench.core.learned import LearnedTable
from flbench.core.text import one_line
from flbench.reports import data_figures
from flbench.reports.data_figures import heat
from flbench.reports.picture import LITERAL, Picture, in_legend, literal, plain, short
from flbench.reports.shown import COLOURS, Drawn
from flbench.results import learned as learned_files
from flbench.results.summary import SPLITS

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Final = ("-", "--", "-.", ":")
MOST_CLASSES: Final = 100  # in a heat map
MOST_LABELS: Final = 70  # names of rows of a heat map
MOST_RARE: Final = 8  # classes whose scores have intervals in a picture
MOST_BESIDE: Final = 6  # methods in that picture
MOST_BANDS: Final = 8  # methods whose curves have bands
WIDTH: Final = 9.0  # inches: the pictures of a page
NARROW: Final = 6.0  # inches: narrower pictures have panels below each other
SMALL: Final = 7.5  # size of the letters of narrow pictures

Draw = Callable[[Analysis, str, float], Picture | None]
"""Draws a picture of a place at a width; None where there is nothing to draw."""


@dataclass(frozen=True)
class PictureOf:
    """A picture of a place, or of all places.

    Attributes:
        title: Heading above the picture.
        about: What it shows, with the fields of `_words_of`.
        draw: Draws it.
        is_map: Whether its colours have a meaning, so that a dark page does not invert them.
        lacks: Why there is no picture where `draw` returns None.
    """

    title: str
    about: str
    draw: Draw
    is_map: bool = False
    lacks: str = "there is nothing to draw."


def draw(analysis: Analysis, name: str, place: str, inches: float = WIDTH) -> Picture | None:
    """Draw a picture of PICTURES or ACROSS; None where there is nothing to draw.

    Args:
        analysis: The tables.
        name: Name of the picture.
        place: Label of the place; any for a picture of all places.
        inches: Width. The width of the pictures `partition` follows from what they show.
    """
    small = {"font.size": SMALL, "lines.markersize": 4} if inches < NARROW else {}
    with mpl.rc_context(LITERAL | small):
        figure = ALL[name].draw(analysis, place, inches)
        if figure is not None and analysis.comparison.apart is not None:
            # The reason stands in the report: it would take the room of a small picture.
            figure.suptitle("Not comparable: see the report.", fontsize=7, color="#9a3b00")
    return figure


def drawn(
    analysis: Analysis, place: str, names: Iterable[str], prefix: str = ""
) -> Iterator[Drawn]:
    """Yield the pictures of these names that there are.

    Args:
        analysis: The tables.
        place: Label of the place.
        names: Names of pictures.
        prefix: Begin of the names of their files.
    """
    words = _words_of(analysis, place)
    for name in names:
        if (figure := draw(analysis, name, place)) is not None:
            one = ALL[name]
            title, about = one.title.format(**words), one.about.format(**words)
            yield Drawn(f"{prefix}{name}", title, about, figure, one.is_map)


def _words_of(analysis: Analysis, place: str) -> dict[str, str]:
    """Return what the captions of pictures say about a comparison."""
    classes = at_place(analysis.classes, place)
    named = {"rare": "A star marks rare classes.", "confusable": "A plus marks confusable classes."}
    count = classes["class"].nunique()
    more = f" Only the rarest {MOST_CLASSES} of {count:,} classes are shown."
    return {
        "metric": _metric(analysis),
        "baseline": one_line(analysis.comparison.baseline),
        "marks": "".join(f" {words}" for mark, words in named.items() if classes[mark].any()),
        "along": "rounds" if _first(analysis) == "round" else "optimizer steps",
        "more": more if count > MOST_CLASSES else "",
        "tests": "; crossbars join methods that Nemenyi's test does not tell apart"
        if has_rank_claims(analysis)
        else "",
    }


def leaders(analysis: Analysis, place: str, inches: float) -> Picture:
    """Draw the metric of each method: mean, 95 % interval, and the repetitions as small dots."""
    rows = at_place(analysis.leaderboard, place)
    figure = _figure(inches, 1.1 + _rows(len(rows), inches))
    axes = figure.add_subplot()
    known = at_place(analysis.values, place)
    known = known[known["metric"] == analysis.comparison.metric]
    columns = rows[["method", "mean", "low", "high"]].itertuples(index=False, name=None)
    for k, (method, mean, *ends) in enumerate(columns):
        values = known.loc[known["method"] == method, "value"]
        style = _style(analysis, method)
        axes.plot(values, [k] * len(values), ".", color=style["color"], ms=5, zorder=3)
        axes.plot(ends, [k, k], color=style["color"], lw=2, zorder=2)
        axes.plot([mean], [k], ms=8, mfc="white", **style)
    _name_rows(axes, analysis, rows["method"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(f"test {_metric(analysis)}")
    plain(axes)
    return figure


def heat_map(what: str, analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw a score by method (rows) and class (columns), rarest class first.

    Args:
        what: `recall`, `precision`, `f1`, or `difference`: the recall minus the baseline's, with
            dots on intervals without zero.
        analysis: The tables.
        place: Label of the place.
        inches: Width.
    """
    table, baseline = at_place(analysis.classes, place), analysis.comparison.baseline
    is_gap = what == "difference"
    methods = [one for one in ranked(analysis, place) if not (is_gap and one == baseline)]
    if not methods:
        return None
    order = table.drop_duplicates("class").sort_values(["train_support", "class"])
    order = order.head(MOST_CLASSES)

    def grid(column: str) -> NDArray[np.float64]:
        wide = table.pivot(index="method", columns="class", values=column)
        found: NDArray[np.float64] = wide.reindex(methods, columns=order["class"]).to_numpy(float)
        return found

    values = grid(what)
    figure, axes = _field(analysis, methods, inches)
    style: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1}
    label = CLASS_SCORES.get(what, f"recall minus\n{_label(analysis, baseline)}'s")
    if is_gap:
        most = float(max(0.05, np.nanmax(np.abs(values), initial=0.0)))
        style = {"cmap": "PuOr_r", "norm": TwoSlopeNorm(0, -most, most)}
        sure = (grid("low") > 0) | (grid("high") < 0)
        axes.plot(*np.nonzero(sure.T), ".", color="black", markersize=4)
    image = heat(axes, values, [], _class_names(order, 28), 0.65 * inches, 7, **style)
    _name_rows(axes, analysis, methods)
    axes.set_xlabel("class, fewest training samples first")
    figure.colorbar(image, ax=axes, label=label)
    return figure


def class_intervals(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw recall and F1 of the rarest classes with their 95 % intervals, a mark per method."""
    table = at_place(analysis.classes, place)
    if table[["recall_low", "f1_low"]].isna().all(axis=None):
        return None
    order = table.drop_duplicates("class").sort_values(["train_support", "class"]).head(MOST_RARE)
    methods = ranked(analysis, place)[:MOST_BESIDE]
    figure, panels = _panels(2, 3.4, inches, sharey=True)
    steps = np.linspace(-0.3, 0.3, len(methods)) if len(methods) > 1 else [0.0]
    for axes, score in zip(panels, ("recall", "f1"), strict=True):
        for method, step in zip(methods, steps, strict=True):
            mine = table[table["method"] == method].set_index("class").reindex(order["class"])
            middle, places = mine[score].to_numpy(float), np.arange(len(order)) + step
            ends = np.stack([middle - mine[f"{score}_low"], mine[f"{score}_high"] - middle])
            style = _style(analysis, method) | {"ls": "none", "ms": 4, "lw": 1.2}
            axes.errorbar(places, middle, yerr=np.nan_to_num(ends), **style)
        data_figures.name_places(axes, _class_names(order, 16), 0.4 * inches, 7)
        axes.set(ylabel=CLASS_SCORES[score], ylim=(-0.03, 1.03))
        plain(axes)
    _legend(figure, panels[0])
    return figure


def _class_names(order: pd.DataFrame, most: int) -> list[str]:
    """Return the names of classes with their marks."""
    return [
        f"{short(str(name), most)}{'*' * rare}{'+' * confusable}"
        for name, rare, confusable in order[["name", "rare", "confusable"]].itertuples(index=False)
    ]


def clients(analysis: Analysis, place: str, inches: float) -> Picture:
    """Draw the share of clients below each accuracy, over all repetitions, a line per method."""
    table = at_place(analysis.clients, place)
    figure = _figure(inches, 3.6)
    axes = figure.add_subplot()
    for method in ranked(analysis, place, table):
        values = table[table["method"] == method]["accuracy"].dropna()
        if len(values):
            axes.ecdf(values, **_line(analysis, method))
    axes.set(xlabel="test accuracy of a client", ylabel="share of clients", xlim=(-0.02, 1.02))
    plain(axes)
    _legend(figure, axes)
    return figure


def convergence(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw the metric by rounds (or steps), bytes and seconds: mean and range of repetitions.

    The upper panels are those of the validation parts, if there are any, the lower ones those of
    the test parts. A line ends with the last round that all repetitions of the method have.
    """
    table = at_place(analysis.curves, place)
    splits = [split for split in SPLITS if (table["split"] == split).any()]
    if not splits:
        return None
    figure, grid = _panels(3, 3.4, inches, rows=len(splits), sharey=True)
    for k, split in enumerate(splits):
        panels = grid[3 * k : 3 * k + 3]
        _curves(analysis, place, table[table["split"] == split], panels)
        panels[0].set(xlabel="round" if _first(analysis) == "round" else "optimizer steps so far")
        panels[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panels[1].set(xlabel="bytes sent so far")
        _log_bytes(panels[1], table["bytes"])
        panels[2].set(xlabel="seconds so far")
        for axes in panels if inches < NARROW else panels[:1]:
            axes.set(ylabel=f"{split} {_metric(analysis)}")
    for axes in grid:
        plain(axes)
    _legend(figure, grid[0])
    return figure


def _first(analysis: Analysis) -> str:
    """Return the column of curves that the first panels have on their axis."""
    return "steps" if analysis.comparison.work == "steps" else "round"


def _curves(analysis: Analysis, place: str, table: pd.DataFrame, panels: Sequence[Axes]) -> None:
    """Draw the curves of a split over rounds, bytes and seconds."""
    runs = table.groupby("method")["repetition"].nunique()
    whole = table.groupby(["method", "round"], as_index=False).agg(
        held=("repetition", "nunique"),
        low=("value", "min"),
        high=("value", "max"),
        **{name: (name, "mean") for name in ("value", "steps", "bytes", "seconds")},
    )
    # Runs that ended early would leave the mean of later rounds to the others.
    whole = whole[whole["held"] == whole["method"].map(runs)]
    for method in ranked(analysis, place, whole):
        mine, style = whole[whole["method"] == method], _line(analysis, method)
        for axes, along in zip(panels, (_first(analysis), "bytes", "seconds"), strict=True):
            x, y, low, high = (mine[name].to_numpy() for name in (along, "value", "low", "high"))
            axes.plot(x, y, **style)
            if len(runs) <= MOST_BANDS:
                axes.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)


def prices(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw the metric against bytes and seconds; a line joins the methods of the Pareto front."""
    rows = at_place(analysis.leaderboard, place)
    if len(rows) < 2:
        return None
    figure, panels = _panels(2, 3.8, inches, sharey=True)
    for axes, what in zip(panels, ("bytes", "seconds"), strict=True):
        chain = rows.iloc[pareto(rows[what].to_list(), rows["mean"].to_list())].sort_values(what)
        axes.plot(chain[what], chain["mean"], color="0.45", lw=1, ls=":", zorder=1)
        for method, cost, value in rows[["method", what, "mean"]].itertuples(index=False):
            axes.plot([cost], [value], ms=8, ls="none", **_style(analysis, method))
        plain(axes)
    panels[0].set(xlabel="bytes of a run", ylabel=f"test {_metric(analysis)}")
    _log_bytes(panels[0], rows["bytes"])
    panels[1].set(xlabel="seconds of a run")
    _legend(figure, panels[0])
    return figure


def pareto(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Return the positions of those that nothing else beats in cost and value.

    >>> pareto([1, 2, 3, 2], [0.5, 0.7, 0.6, 0.6])
    [0, 1]
    """
    cost, value = np.asarray(costs), np.asarray(values)
    no_worse = (cost[:, None] <= cost) & (value[:, None] >= value)
    is_other = (cost[:, None] != cost) | (value[:, None] != value)
    return np.nonzero(~(no_worse & is_other).any(axis=0))[0].tolist()


def partition(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw the training samples by client and class of the first repetition; None if unknown."""
    entry = analysis.comparison.at(place)[0]
    if (counts := entry.run.client_counts) is None:
        return None
    classes = at_place(analysis.classes, place).drop_duplicates("class").sort_values("class")
    names, clients = [str(name) for name in classes["name"]], _client_names(analysis, place)
    if len(clients) != len(counts):
        clients = []
    return data_figures.partition_table(counts, names, entry.run.summary["dataset"], clients)


def _client_names(analysis: Analysis, place: str) -> list[str]:
    """Return the names of the clients of the first repetition; empty if they have none."""
    table = at_place(analysis.clients, place)
    first = table[table["repetition"] == table["repetition"].min()].drop_duplicates("client")
    names = first.sort_values("client")["name"].astype(str)
    return names.to_list() if (names != "").any() else []


def settings(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw a heat map of the metric by method (rows) and place (columns).

    The number in a field is the mean over repetitions, its colour the distance from the best mean
    of the place.
    """
    methods, places = list(analysis.comparison.methods), list(analysis.comparison.places)
    if len(places) < 2 or len(methods) < 2:
        return None
    wide = analysis.leaderboard.pivot(index="method", columns="place", values="mean")
    values = wide.loc[methods, places].to_numpy(float)
    gaps = np.nanmax(values, axis=0) - values
    figure, axes = _field(analysis, methods, inches)
    most = float(np.nanmax(gaps, initial=0.0)) or 1.0
    room = 0.62 * inches / len(places)  # of a field
    names = [short(one, 40) for one in places]
    image = heat(axes, gaps, [], names, 0.62 * inches, 7, cmap="cividis_r", vmax=most)
    _name_rows(axes, analysis, methods)
    if (font := min(SMALL, 72 * room / 3.1)) >= 4:
        texts = np.array([["" if np.isnan(x) else f"{x:.3f}" for x in row] for row in values])
        data_figures.write(axes, texts, gaps > 0.5 * most, font)
    figure.colorbar(image, ax=axes, label="below the best mean")
    return figure


def ranks(analysis: Analysis, place: str, inches: float) -> Picture | None:
    """Draw the mean ranks over places; crossbars join methods that a test does not tell apart."""
    across = analysis.across
    if across is None:
        return None
    from scikit_posthocs import critical_difference_diagram  # takes seconds to import

    has_claims = has_rank_claims(analysis)
    labels = {name: _label(analysis, str(name)) for name in across.ranks.index}
    bars = len(labels) // 2 if has_claims else 0  # there are seldom more
    figure = _figure(inches, 0.8 + 0.25 * (len(labels) // 2 + 1 + bars))
    drawn = critical_difference_diagram(
        across.ranks.rename(labels),
        (across.nemenyi * has_claims).rename(index=labels, columns=labels),  # no test: no crossbar
        cd=across.critical if has_claims else None,
        ax=figure.add_subplot(),
        color_palette={labels[one]: _style(analysis, str(one))["color"] for one in labels},
        label_props={"fontsize": 8},
    )
    for [bar] in drawn["crossbars"]:  # its points have the order of a set
        bar.set_xdata(sorted(bar.get_xdata()))
    return figure


def learned(analysis: Analysis, place: str, prefix: str = "") -> Iterator[Drawn]:
    """Yield pictures of what the methods of a place have learned, each in its first repetition."""
    classes = at_place(analysis.classes, place).drop_duplicates("class").sort_values("class")
    names = {
        "class": [short(name, 14) for name in classes["name"]],
        "client": [short(name, 14) for name in _client_names(analysis, place)],
    }
    for number, method in enumerate(analysis.comparison.methods, 1):
        for entry in analysis.comparison.at(place, method)[:1]:
            for one in learned_files.read(entry.run.path):
                yield Drawn(
                    f"{prefix}learned-{number}-{slug(one.name)}",
                    f"What {one_line(method)} learned: {one_line(one.name)}",
                    f"{one_line(one.about)} In the first repetition, after the last round.",
                    draw_learned(one, names),
                    is_map=True,
                )


@literal
def draw_learned(one: LearnedTable, names: Mapping[str, Sequence[str]]) -> Picture:
    """Draw a table that a method has learned as a heat map.

    Args:
        one: The table.
        names: Names of the classes (`class`) and of the clients (`client`).
    """
    values = np.asarray(one.values)
    rows, columns = values.shape
    inner = min(WIDTH - 2.5, max(2.0, 0.22 * columns))
    figure = _figure(inner + 2.5, min(8.0, max(1.6, 1.3 + 0.2 * rows)))
    axes = figure.add_subplot()
    low, high = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=-np.inf)
    style: dict[str, Any] = {"cmap": "cividis"}
    if low < 0 < high:
        style = {"cmap": "PuOr_r", "norm": TwoSlopeNorm(0, low, high)}
    own = [short(name, 40) for name in one.labels] or names.get(one.columns, ())
    image = heat(axes, values, names.get(one.rows, ())[:MOST_LABELS], own, inner, 7, **style)
    axes.set(xlabel=short(one.columns, 40), ylabel=short(one.rows, 40))
    figure.colorbar(image, ax=axes)
    return figure


PICTURES: Final[Mapping[str, PictureOf]] = {
    "leaders": PictureOf(
        "Test {metric}",
        "Test {metric} of each method: the large mark is the mean, the line its 95 % interval, and"
        " each dot a repetition.",
        leaders,
    ),
    "class-intervals": PictureOf(
        "The rarest classes",
        "Recall and F1 of the classes with the fewest training samples: the mark is the mean over"
        f" repetitions, the line its 95 % interval. At most {MOST_RARE} classes and the first"
        f" {MOST_BESIDE} methods of the leaderboard.{{marks}}",
        class_intervals,
        lacks="scores of classes have intervals from three repetitions on.",
    ),
    **{
        name: PictureOf(
            f"{shown[0].upper()}{shown[1:]} by class",
            f"{shown[0].upper()}{shown[1:]} of each method and class, mean over repetitions."
            "{marks}{more}",
            partial(heat_map, name),
            is_map=True,
        )
        for name, shown in CLASS_SCORES.items()
    },
    "recall-gain": PictureOf(
        "Recall by class, against the baseline",
        "Recall minus that of {baseline}. A dot marks a difference whose 95 % interval does not"
        " contain zero; with this many classes some intervals miss zero by chance.{more}",
        partial(heat_map, "difference"),
        is_map=True,
        lacks="there is only the baseline: differences need two methods.",
    ),
    "clients": PictureOf(
        "Clients",
        "Share of the clients below each test accuracy, over all repetitions. A line further to the"
        " right is better; its lower end are the worst clients.",
        clients,
    ),
    "convergence": PictureOf(
        "Convergence",
        "Mean over repetitions by {along}, bytes and seconds, on validation and on test parts, at"
        " the rounds that all repetitions of a method have; of at most eight methods, the band is"
        " their range. The seconds of a run are shared out evenly over its rounds.",
        convergence,
        lacks="the runs do not have the metric by round.",
    ),
    "prices": PictureOf(
        "Price",
        "Mean test {metric} against the bytes of all clients and the seconds of a run. The dotted"
        " line joins the methods that no other method beats in both.",
        prices,
        lacks="a price needs two methods.",
    ),
    "partition": PictureOf(
        "Partition",
        "Training samples by client and class, in the first repetition; empty where none are.",
        partition,
        is_map=True,
        lacks="the first run has no partition.npz.",
    ),
}
"""The pictures of a place."""
ACROSS: Final[Mapping[str, PictureOf]] = {
    "settings": PictureOf(
        "Methods and settings",
        "Mean test {metric} over repetitions. The colour is the distance from the best mean of the"
        " place: light fields are near to it.",
        settings,
        is_map=True,
        lacks="this picture needs two data sets or settings, and two methods.",
    ),
    "ranks": PictureOf(
        "Mean ranks",
        "Mean rank of each method over data sets and settings, 1 is best{tests}.",
        ranks,
        lacks="ranks need two data sets or settings, and two methods that both have.",
    ),
}
"""The pictures of all places together."""
ALL: Final[Mapping[str, PictureOf]] = {**PICTURES, **ACROSS}


def slug(name: str) -> str:
    """Return a name as a part of a file's name.

    >>> slug("digits, alpha=0.1")
    'digits-alpha-0-1'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]


def _metric(analysis: Analysis) -> str:
    return words(analysis.comparison.metric)


def _figure(inches: float, high: float) -> Picture:
    """Return an empty figure."""
    return Picture(figsize=(inches, high), layout="constrained")


def _field(analysis: Analysis, methods: Sequence[str], inches: float) -> tuple[Picture, Axes]:
    """Return a figure and its axes for values by method."""
    figure = _figure(inches, 2.0 + _rows(len(methods), inches))
    return figure, figure.add_subplot()


def _rows(count: int, inches: float) -> float:
    """Return the height of rows of methods, which are lower in a narrow picture."""
    return count * (0.19 if inches < NARROW else 0.3)


def _panels(
    count: int, high: float, inches: float, rows: int = 1, **options: Any
) -> tuple[Picture, list[Axes]]:
    """Return a figure with panels, row by row; in a narrow one a row is a column of panels."""
    if inches < NARROW:
        figure = _figure(inches, 0.55 * high * count + 0.4)
        return figure, list(figure.subplots(count, rows, squeeze=False, **options).T.ravel())
    figure = _figure(inches, high if rows == 1 else 0.8 * high * rows)
    return figure, list(figure.subplots(rows, count, squeeze=False, **options).ravel())


def _style(analysis: Analysis, method: str) -> dict[str, Any]:
    """Return colour, marker and label of a method."""
    number = analysis.comparison.methods.index(method)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "label": in_legend(_label(analysis, method)),
    }


def _line(analysis: Analysis, method: str) -> dict[str, Any]:
    """Return the style of a line: methods differ in colour and dashes."""
    dashes = DASHES[analysis.comparison.methods.index(method) % len(DASHES)]
    return _style(analysis, method) | {"marker": "", "ls": dashes, "lw": 1.6}


def _name_rows(axes: Axes, analysis: Analysis, methods: Iterable[str]) -> None:
    """Write the labels of methods beside the rows 0, 1, ...; those of two lines are smaller."""
    labels = [_label(analysis, method) for method in methods]
    fontsize = SMALL if any("\n" in label for label in labels) else None
    axes.set_yticks(range(len(labels)), labels, fontsize=fontsize)


def _label(analysis: Analysis, method: str) -> str:
    """Return a method's label, which no other method has, in at most two lines of 36 characters."""
    number = analysis.comparison.methods.index(method) + 1
    return "\n".join(wrap(one_line(method), 36, max_lines=2, placeholder=f"... (no. {number})"))


def _log_bytes(axes: Axes, values: "pd.Series[float]") -> None:
    """Give the axis of bytes a scale with a place for zero, which is logarithmic if it is long."""
    least, most = values[values > 0].min(), values.max()
    axes.xaxis.set_major_locator(MaxNLocator(4))
    if most > 10 * least:
        first, last = math.floor(math.log10(least)), math.floor(math.log10(most))
        ticks = [10.0**k for k in range(first, last + 1, 1 + (last - first) // 4)]
        has_zero = bool(values.min() <= 0)
        axes.set_xscale("symlog", linthresh=ticks[0])
        axes.set_xticks([0.0] * has_zero + ticks)
        axes.set_xlim(left=-0.1 * ticks[0] if has_zero else ticks[0])
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.tick_params(axis="x", labelsize=8)


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend below the panels, which keep their height."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    wide, high = figure.get_size_inches()
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = min(len(labels), 5, max(1, int(14.5 * wide / (longest + 6))))
    lines = sum(1 + label.count("\n") for label in labels) / columns
    figure.set_size_inches(wide, high + max(0.0, lines - 2) * 0.17)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=7 if wide < NARROW else 8,
    )
