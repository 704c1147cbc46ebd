"""The tables of a comparison as they are shown: which columns, with which headings, and why."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench.analysis.progress import COSTS
from flbench.analysis.scores import DECILES
from flbench.analysis.statistics import CLAIM_FROM, MOST_NEEDED
from flbench.analysis.tables import CLASS_SCORES, CORRECTED, TESTS, Analysis
from flbench.core.text import one_line
from flbench.reports.picture import short
from flbench.reports.shown import (
    Column,
    Shown,
    Write,
    is_missing,
    score,
    size,
    tenth,
    whole,
)

HEADINGS: Final = {
    "rare_recall": "rare recall",
    "rare_f1": "rare F1",
    "macro_f1": "macro F1",
    "worst10_accuracy": "worst 10 %",
}
"""Headings of columns whose names are not those of their metrics."""
SPREAD: Final = {
    "mean": "mean",
    "std": "std over clients",
    "worst": "worst",
    "q10": "10 %",
    "q25": "25 %",
    "median": "median",
    "q75": "75 %",
    "q90": "90 %",
    "gain": "mean gain",
    "gaining": "share that gains",
    "losing": "share that loses",
    "gain_ft": "mean gain over ft",
    "gaining_ft": "share above ft",
    "losing_ft": "share below ft",
}
"""Headings of the measures of the clients of a run."""
FLOOR: Final = {"local": "from scratch", "ft": "fine-tuned FedAvg"}
"""Methods beside which new clients are read."""
RARE_METRICS: Final = ("rare_recall", "rare_f1", "macro_f1")
MOST_CLIENTS: Final = 100  # rows of the table of clients
MOST_LETTERS: Final = 48  # of the name of a client
MOST_CLASSES: Final = 100  # rows of the table of classes
MOST_RARE: Final = 8  # rare classes that have columns
FEW_TESTS: Final = 40  # test samples of a client; with fewer, chance chooses the worst clients
WHOLE: Final = ((0.0, 1.0), (-1.0, 1.0))  # intervals that are cut at both ends of their scale
COST: Final[Mapping[str, Callable[[float], str]]] = {
    "rounds": "{:g}".format,
    "bytes": size,
    "seconds": tenth,
}


def p_value(value: float) -> str:
    """Return a p-value.

    >>> p_value(0.04321), p_value(0.00001)
    ('0.0432', '< 0.0001')
    """
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def mean(value: Sequence[float], write: Write = score) -> str:
    """Return the mean of (mean, low, high)."""
    return write(value[0])


def interval(value: Sequence[float], write: Write = score) -> str:
    """Return a mean with its interval (mean, low, high); the mean alone if there is none.

    >>> interval((0.5, 0.4, 0.6)), interval((-0.5, -0.6, -0.4), "{:+.2f}".format)
    ('0.5000 [0.4000, 0.6000]', '-0.50 [-0.60, -0.40]')
    """
    middle, low, high = value
    return write(middle) if isnan(low) else f"{write(middle)} [{write(low)}, {write(high)}]"


signed: Final = partial(interval, write="{:+.4f}".format)
"""Returns a difference with its interval and with signs."""


def half_width(value: Sequence[float], digits: int = 4) -> str:
    """Return a mean with half the width of its interval, which can be cut at one end of the scale.

    >>> nan = float("nan")
    >>> [half_width(one) for one in ((0.5, 0.45, 0.55), (0.98, 0.93, 1.0), (0.5, nan, nan))]
    ['0.5000 ± 0.0500', '0.9800 ± 0.0500', '0.5000']
    >>> half_width((0.4, 0.0, 1.0))  # it is cut at both ends
    '0.4000 [0, 1]'
    """
    middle, low, high = value
    if isnan(low):
        return score(middle, digits)
    if (low, high) in WHOLE:
        return f"{score(middle, digits)} [{low:.0f}, {high:.0f}]"
    return f"{score(middle, digits)} ± {score(max(high - middle, middle - low), digits)}"


narrow: Final = partial(half_width, digits=3)
"""Returns a mean with half the width of its interval as papers have it."""


def wide(heading: str) -> Column:
    """Return a column of means with half the width of their intervals."""
    return Column(heading, half_width, narrow)


def of_metric(name: str) -> Write:
    """Return what writes a metric, `bytes` or `seconds`."""
    known: dict[str, Write] = {"bytes": size, "seconds": tenth}
    return known.get(name, score)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame as dicts."""
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def heading_of(metric: str) -> str:
    """Return the name of a metric as the heading of a column."""
    return HEADINGS.get(metric, one_line(metric.replace("_", " ")))


def triple(row: Mapping[str, Any] | None, name: str = "mean", of: str = "") -> tuple[float, ...]:
    """Return a value of a row with the ends of its interval; () if there is no row."""
    return () if row is None else (row[name], row[f"{of}low"], row[f"{of}high"])


def complete_scores(analysis: Analysis, place: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of the table of scores of a place by method and metric.

    A score that some repetitions of the method lack is left out: beside others, its mean would be
    one over other repetitions.
    """
    runs = {row["method"]: row["n"] for row in records(_at(analysis.leaderboard, place))}
    rows = records(_at(analysis.scores, place))
    return {(row["method"], row["metric"]): row for row in rows if row["n"] == runs[row["method"]]}


def leaderboard(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the leaderboard of a place."""
    rows = records(_at(analysis.leaderboard, place))
    known = complete_scores(analysis, place)
    metric, *others = analysis.comparison.columns
    marks = _marks(analysis, place, rows)
    said = {
        "best": "Bold: the largest mean.",
        "like": "Underlined: no test tells it apart from the largest mean.",
        "apart": f"*: a significant difference from {one_line(analysis.comparison.baseline)}.",
    }
    yield Shown(
        "Leaderboard",
        {
            "rank": Column("rank", whole),
            "method": Column("method"),
            "mean": Column(f"{heading_of(metric)} (95 % interval)", interval, narrow),
            "std": Column("std", score),
            "last": Column("last round", score),
            "n": Column("runs", whole),
            "groups": Column("groups"),
            **{f"mean {name}": _means_of(name) for name in others},
            "better_than": Column("better than"),
        },
        [
            row
            | {"mean": triple(row)}
            | {f"mean {name}": triple(known.get((row["method"], name))) for name in others}
            for row in rows
        ],
        " ".join(_about_leaderboard(analysis, place, rows)),
        place,
        {(k, "mean"): mark for k, mark in marks.items()},
        " ".join(words for mark, words in said.items() if mark in " ".join(marks.values())),
        screen=("rank", "std", "last", "groups", "better_than"),
    )


def _means_of(metric: str) -> Column:
    """Return a column of means of a metric; papers have the intervals of scores too."""
    write, is_score = of_metric(metric), of_metric(metric) is score
    return Column(heading_of(metric), partial(mean, write=write), narrow if is_score else None)


def _marks(analysis: Analysis, place: str, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return what is said of rows of the leaderboard; nothing of a single method."""
    best = [row["method"] for row in rows if row["rank"] == 1]
    is_beside_one = analysis.comparison.reference is not None
    said: dict[str, str] = {}
    pairs = analysis.pairs[analysis.pairs["metric"] == analysis.comparison.metric]
    for row in records(_at(pairs, place)):
        same = row["verdict"] == "no significant difference"
        if is_beside_one and row["verdict"] in ("better", "worse"):
            said[row["first"]] = "apart"
        elif best and not is_beside_one and same and best[0] in (row["first"], row["second"]):
            said[row["second"] if row["first"] == best[0] else row["first"]] = "like"
    if len(rows) > 1:
        said |= {method: f"best {said.get(method, '')}" for method in best}
    return {k: said[row["method"]] for k, row in enumerate(rows) if row["method"] in said}


def _about_leaderboard(
    analysis: Analysis, place: str, rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield what the columns of a leaderboard mean."""
    if max(row["n"] for row in rows) > 1:
        population = analysis.comparison.sampling_at(place).population
        yield f"{', '.join(filter(None, ['Means over repetitions', population]))}."
    if any(row["groups"] for row in rows):
        yield "Methods whose groups have no common letter differ significantly."
    if any(is_missing(row["rank"]) for row in rows):
        yield (
            "Methods without a rank lack repetitions, so their means are over fewer repetitions"
            " than those of the others."
        )
    clients = _at(analysis.clients, place)
    tests = clients["test_size"].median()
    has_worst = any(name == "worst10_accuracy" for _, name in complete_scores(analysis, place))
    if has_worst and clients["client"].nunique() > 1 and tests < FEW_TESTS:
        yield (
            f"The accuracy of the worst 10 % of clients is too low: with {tests:.0f} test samples"
            " of a client, chance chooses the worst."
        )


def rare(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the scores of the rare classes by method; nothing where no class is rare."""
    rows = _at(analysis.classes, place)
    rare = rows[rows["rare"]].drop_duplicates("class").sort_values(["train_support", "class"])
    if rare.empty:
        return
    known = complete_scores(analysis, place)
    of_class = {(row["method"], row["class"]): row for row in records(rows)}
    some = records(rare.head(MOST_RARE))
    names = {row["class"]: short(str(row["name"])) for row in some}
    yield Shown(
        "Rare classes",
        {
            "method": Column("method"),
            **{name: wide(heading_of(name)) for name in RARE_METRICS},
            **{f"f1 {one}": wide(f"F1 of {name}") for one, name in names.items()},
            **{f"recall {one}": wide(f"recall of {n}") for one, n in names.items()},
        },
        [
            {"method": method}
            | {name: triple(known.get((method, name))) for name in RARE_METRICS}
            | {
                f"{what} {one}": triple(of_class.get((method, one)), what, f"{what}_")
                for one in names
                for what in ("f1", "recall")
            }
            for method in _at(analysis.leaderboard, place)["method"]
        ],
        "Rare recall and rare F1 are means over the rare classes"
        f" ({', '.join(names.values())}{_more(len(rare) - len(some), 'more')}); macro F1 is the"
        " mean over all classes. Means over repetitions, with half the width of the 95 % interval.",
        place,
        fixed=("method",),
    )


def _more(count: int, what: str) -> str:
    return f" and {count:,} {what}" if count > 0 else ""


def scores(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield mean, standard deviation, interval and number of each column of a leaderboard."""
    ranked = list(_at(analysis.leaderboard, place)["method"])
    known = {(row["metric"], row["method"]): row for row in records(_at(analysis.scores, place))}
    rows = [
        known[name, method]
        for name in analysis.comparison.columns
        for method in ranked
        if (name, method) in known
    ]
    population = analysis.comparison.sampling_at(place).population
    yield Shown(
        "Scores with their deviations",
        {
            "metric": Column("metric"),
            "method": Column("method"),
            "mean": Column("mean", _by_metric),
            "std": Column("std", _by_metric),
            "low": Column("95 % interval", _ends_by_metric),
            "n": Column("runs", whole),
        },
        [
            row
            | {"metric": heading_of(row["metric"])}
            | {what: (row[what], row["metric"]) for what in ("mean", "std")}
            | {"low": (row["low"], row["high"], row["metric"])}
            for row in rows
        ],
        f"{', '.join(filter(None, ['Means over repetitions', population]))}; std is the standard"
        " deviation between repetitions. All test metrics are in tables/scores.csv.",
        place,
        is_tall=True,
    )


def _by_metric(value: tuple[float, str]) -> str:
    return of_metric(value[1])(value[0])


def _ends_by_metric(value: tuple[float, float, str]) -> str:
    write = of_metric(value[2])
    return f"{write(value[0])} to {write(value[1])}"


def pairs(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the differences between every two methods of a place, a table for each metric."""
    sampling = analysis.comparison.sampling_at(place)
    for metric, rows in _at(analysis.pairs, place).groupby("metric", sort=False):
        tests = [test for test in TESTS if test in set(rows["test"])]
        # For fixed clients the test that decides is this one already.
        has_other = CORRECTED not in tests and bool(rows["corrected"].notna().any())
        where = ", ".join(filter(None, [" and ".join(tests), sampling.population]))
        about = []
        if tests:
            corrected = analysis.comparison.corrected_for
            about.append(f"p: {where}. p (Holm): corrected {corrected}; it decides.")
        elif sampling.why_not:
            about.append(f"There is no p: {sampling.why_not} support no claim. `--vary both` does.")
        elif rows["n"].max() < CLAIM_FROM:
            about.append("There is no p: fewer than three repetitions are not tested.")
        else:
            about.append("There is no p: each difference is the same in all repetitions.")
        if CORRECTED in tests:
            about.append(
                "The test is that of Nadeau and Bengio, because the parts of the same clients"
                " overlap."
            )
        if has_other:
            about.append(
                "p (other samples): corrected resampled t-test (Nadeau and Bengio) for other"
                " samples of the same kind, not corrected for several tests: repetitions have"
                f" {100 * sampling.shared:.0f} % of their samples in common."
            )
        about.append(
            "P(improvement): share of repetitions in which the first method is better than the"
            " second; equal values count half."
        )
        if any(map(_needed, records(rows))):
            about.append(
                "Repetitions needed: to see a difference of this size with a probability of 80 %,"
                " where it is not significant."
            )
        yield Shown(
            f"Differences in {heading_of(str(metric))}",
            {
                "pair": Column("difference"),
                "difference": Column("mean (95 % interval)", signed),
                "n": Column("runs", whole),
                "p": Column("p", p_value),
                "p_holm": Column("p (Holm)", p_value),
                **({"corrected": Column("p (other samples)", p_value)} if has_other else {}),
                "probability": Column("P(improvement)", partial(score, digits=2)),
                "verdict": Column("verdict"),
                "needed": Column("repetitions needed", _many),
            },
            [
                row
                | {"pair": f"{row['first']} - {row['second']}"}
                | {"difference": triple(row, "difference"), "needed": _needed(row)}
                for row in records(rows)
            ],
            " ".join(about),
            place,
        )


def _needed(row: Mapping[str, Any]) -> float | None:
    """Return the repetitions to see a difference; infinity for many, None where none are needed."""
    if row["verdict"] != "no significant difference" or row["test"] == CORRECTED:
        return None
    return inf if isnan(row["needed"]) else row["needed"]


def _many(count: float) -> str:
    return f"> {MOST_NEEDED:,}" if count == inf else whole(count)


def targets(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield what it costs to reach the targets of a place, by split; nothing without a target."""
    metric, curves = heading_of(analysis.comparison.metric), _at(analysis.curves, place)
    for split, rows in _at(analysis.targets, place).groupby("split", sort=False):
        rounds = np.unique(curves.loc[curves["split"] == split, "round"])
        often = int(np.diff(rounds).max(initial=1))
        about = [
            f"Each run is evaluated every {often} rounds." if often > 1 else "",
            "Test parts choose nothing in a run: this table only describes it."
            if split == "test"
            else "",
            "The cost of a run is that of its first evaluation that reaches the target, and the"
            " table has the median over all runs of a method, in brackets the smallest and the"
            " largest cost of those that reach it. A run that ends without reaching the target"
            " counts as later than all others: where half of the runs or more do, there is a dash.",
        ]
        yield Shown(
            f"Costs until a {split} {metric}",
            {
                "target": Column("target", "{:g}".format),
                "method": Column("method"),
                "share": Column("runs that reach it"),
                **{what: Column(what, partial(_cost, what)) for what in COSTS},
            },
            [
                row
                | {"share": f"{100 * row['share']:.0f} % ({row['reached']} of {row['n']})"}
                | {what: (row[what], row[f"{what}_min"], row[f"{what}_max"]) for what in COSTS}
                for row in records(rows)
            ],
            " ".join(filter(None, about)),
            place,
        )


def _cost(what: str, value: tuple[float, float, float]) -> str:
    """Return a cost of the table of targets, with its range over the runs that reach the target."""
    middle, low, high = map(COST[what], value)
    return middle if low == high else f"{middle} ({low} to {high})"


def classes(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield recall, precision and F1 by class and method of a place."""
    rows = _at(analysis.classes, place)
    keys = _keys(analysis, rows)
    known = {(row["class"], row["method"]): row for row in records(rows)}
    most = rows.sort_values("n", ascending=False, kind="stable")  # of repetitions
    first = most.drop_duplicates("class").sort_values(["train_support", "class"])
    more = len(first) - MOST_CLASSES
    about = (
        "Means over repetitions with half the width of the 95 % interval; classes with the fewest"
        " training samples first. Numbers of samples and of clients are means over repetitions too."
    )
    if rows["n"].nunique() > 1:
        about += " Recall and F1 are means over the repetitions with test samples of the class."
    about += f" {more:,} more classes are in tables/classes.csv." if more > 0 else ""
    columns = {
        "name": Column("class"),
        "train_support": Column("training samples", whole),
        "test_support": Column("test samples", whole),
        "holders": Column("clients with it", whole),
        "marks": Column("marks"),
    }
    for name, shown in CLASS_SCORES.items():
        yield Shown(
            f"{shown[0].upper()}{shown[1:]} by class",
            columns | {key: wide(one_line(m)) for m, key in keys.items()},
            [
                row
                | {"marks": tuple(mark for mark in ("rare", "confusable") if row[mark])}
                | {
                    key: triple(known.get((row["class"], method)), name, f"{name}_")
                    for method, key in keys.items()
                }
                for row in records(first.head(MOST_CLASSES))
            ],
            about,
            place,
            fixed=tuple(columns),
            is_tall=True,
        )


def clients(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield how the accuracy of the clients of a place is distributed, and that of each client."""
    table = _at(analysis.client_spread, place)
    known = {(row["method"], row["measure"]): row for row in records(table)}
    methods = list(_keys(analysis, table))
    about = (
        "Accuracy of the clients with test samples of a run: its mean over clients, its standard"
        " deviation between clients, the worst client, and quantiles; each as a mean over"
        " repetitions, with half the width of its 95 % interval."
    )
    if "gain" in set(table["measure"]):
        about += (
            " A client gains if its accuracy is larger than that of the model that it trains alone"
            " (method local) in the same repetition."
        )
    if "gain_ft" in set(table["measure"]):
        about += " A client is above ft if its accuracy is larger than that of fine-tuned FedAvg."
    yield Shown(
        "Accuracy over clients",
        {
            "method": Column("method"),
            **{measure: wide(title) for measure, title in SPREAD.items()},
        },
        [
            {"method": method}
            | {measure: triple(known.get((method, measure))) for measure in SPREAD}
            for method in methods
        ],
        about,
        place,
        fixed=("method",),
    )
    yield Shown(
        "Deciles over clients",
        {
            "method": Column("method"),
            **{measure: Column(f"{share:.0%}", mean) for measure, share in DECILES.items()},
        },
        [
            {"method": method}
            | {measure: triple(known.get((method, measure))) for measure in DECILES}
            for method in methods
        ],
        "Accuracy below which a tenth of the clients with test samples of a run lie, two tenths,"
        " and so on; each as a mean over repetitions.",
        place,
        fixed=("method",),
    )
    yield from _each_client(analysis, place)


def _each_client(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the accuracy of each client; nothing where repetitions draw clients anew."""
    table = _at(analysis.client_scores, place)
    if table.empty:
        return
    keys, first = _keys(analysis, table), table.drop_duplicates("client").sort_values("client")
    known = {(row["client"], row["method"]): row for row in records(table)}
    more = len(first) - MOST_CLIENTS
    columns = {
        "client": Column("client"),
        "train_size": Column("training samples", whole),
        "test_size": Column("test samples", whole),
    }
    yield Shown(
        "Accuracy by client",
        columns | {key: wide(one_line(method)) for method, key in keys.items()},
        [
            row
            | {"client": short(str(row["name"]), MOST_LETTERS) or str(row["client"])}
            | {
                key: triple(known.get((row["client"], method)), "accuracy", "accuracy_")
                for method, key in keys.items()
            }
            for row in records(first.head(MOST_CLIENTS))
        ],
        "Mean over the repetitions in which the client has test samples, with half the width of its"
        " 95 % interval. Numbers of samples are means over repetitions too."
        + (f" {more:,} more clients are in tables/client_scores.csv." if more > 0 else ""),
        place,
        fixed=tuple(columns),
        is_tall=True,
    )


def new_clients(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the scores of the clients that join after the training; nothing if no run has any."""
    rows = records(_at(analysis.new_clients, place))
    if not rows:
        return
    entries = analysis.comparison.at(place)
    what = entries[0].run.config.client_metric.replace("_", " ")
    last = {row["method"]: row for row in rows}  # of the largest number of epochs
    epochs = {k: f"{k} epoch{'' if k == 1 else 's'}" for k in sorted({r["epochs"] for r in rows})}
    known = {(row["method"], row["epochs"]): row for row in rows}
    about = (
        f"Test {what} over the clients that trained in no round, after epochs of training on their"
        " own training parts, on a copy that is discarded. 0 epochs: the model that the server"
        f" would send. Gap: this {what} minus that of the clients that trained, after as many"
        " further epochs from their own models. The last columns are for the largest number of"
        " epochs; bytes and steps are those of a client."
    )
    names = {entry.run.config.algorithm.name for entry in entries}
    if missing := [f"`{name}` ({words})" for name, words in FLOOR.items() if name not in names]:
        about += (
            f" The figures are read beside those of {' and '.join(missing)}, which this comparison"
            " does not have."
        )
    yield Shown(
        "Clients that join later",
        {
            "method": Column("method"),
            **{f"new {k}": wide(words) for k, words in epochs.items()},
            **{f"gap {k}": Column(f"gap, {w}", "{:+.4f}".format) for k, w in epochs.items()},
            "worst10": Column("worst 10 %", score),
            "received_bytes": Column("bytes to join", size),
            "steps": Column("steps", tenth),
        },
        [
            row
            | {f"new {k}": triple(known.get((method, k))) for k in epochs}
            | {f"gap {k}": known[method, k]["gap"] for k in epochs if (method, k) in known}
            for method, row in last.items()
        ],
        about,
        place,
        fixed=("method",),
    )


def ranks(analysis: Analysis, place: str = "") -> Iterator[Shown]:
    """Yield the mean ranks over places; nothing for a single place."""
    across = analysis.across
    if across is None:
        return
    has_claims = has_rank_claims(analysis)
    best = str(across.ranks.index[0])
    beside = across.nemenyi[best].to_dict()
    about = []
    if across.blocks < across.places:
        about.append(
            "Places with the same kind of partition rank methods alike, so each of the"
            f" {across.blocks} kinds has one ranking."
        )
    if not has_claims:
        about.append("The repetitions of a place support no claim, so the ranks are not tested.")
    else:
        if not np.isnan(across.friedman):
            about.append(f"Friedman's test: p = {p_value(across.friedman)}.".replace("= <", "<"))
        about.append(
            f"Mean ranks that differ by {across.critical:.2f} or more differ significantly."
        )
    yield Shown(
        f"Ranks over {across.places} places",
        {
            "method": Column("method"),
            "rank": Column("mean rank", partial(score, digits=2)),
            "p": Column(f"p beside {one_line(best)} (Nemenyi)", p_value),
        },
        [
            {
                "method": str(name),
                "rank": float(rank),
                "p": beside[str(name)] if has_claims and name != best else None,
            }
            for name, rank in across.ranks.items()
        ],
        " ".join(about),
    )


def has_rank_claims(analysis: Analysis) -> bool:
    """Return whether the repetitions of all places support claims about ranks over places."""
    if analysis.across is None:
        return False
    comparison, board = analysis.comparison, analysis.leaderboard
    fewest = board.loc[board["method"].isin(analysis.across.ranks.index), "n"].min()
    supports = all(comparison.sampling_at(one).supports_claims for one in comparison.places)
    return bool(fewest >= CLAIM_FROM) and supports


def runs(analysis: Analysis) -> Shown:
    """Return the table of the runs with their seeds and hashes."""
    hashes = {
        "partition_hash": "partition",
        "config_hash": "configuration",
        "weights_digest": "weights",
    }
    return Shown(
        "All runs, with their hashes",
        {
            **{name: Column(name) for name in ("place", "method")},
            **{name: Column(name, str) for name in ("repetition", "seed")},
            **{key: Column(title, "{:.10}".format) for key, title in hashes.items()},
            "folder": Column("folder"),
        },
        [
            {
                **{name: getattr(one, name) for name in ("place", "method", "repetition")},
                "seed": one.run.config.seed,
                **{key: one.run.summary.get(key) for key in hashes},
                "folder": one.folder,
            }
            for one in analysis.comparison.entries
        ],
    )


TABLES: Final[Mapping[str, Callable[[Analysis, str], Iterator[Shown]]]] = {
    "leaderboard": leaderboard,
    "rare": rare,
    "scores": scores,
    "pairs": pairs,
    "targets": targets,
    "classes": classes,
    "clients": clients,
    "new_clients": new_clients,
    "ranks": ranks,
}
"""The tables of a place by name, and the ranks over places."""


def _at(table: pd.DataFrame, place: str) -> pd.DataFrame:
    return table[table["place"] == place]


def _keys(analysis: Analysis, table: pd.DataFrame) -> dict[str, str]:
    """Return the keys of the columns of the methods of a table, by method in their order."""
    have = set(table["method"])
    return {m: f"of {m}" for m in analysis.comparison.methods if m in have}
