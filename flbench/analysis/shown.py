"""The tables of a comparison as they are shown: which columns, with which headings, and why."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench.analysis.answer import words
from flbench.analysis.progress import COSTS
from flbench.analysis.statistics import CLAIM_FROM, MOST_NEEDED
from flbench.analysis.tables import CLASS_SCORES, CORRECTED, TESTS, Analysis
from flbench.core.text import one_line
from flbench.reports.picture import short
from flbench.reports.shown import Column, Shown, Write, is_missing, score, size, tenth, whole

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
RARE_METRICS: Final = ("rare_recall", "rare_f1", "macro_f1")
MOST_ROWS: Final = 100  # of the tables of clients and of classes
MOST_LETTERS: Final = 48  # of the name of a client
MOST_RARE: Final = 8  # rare classes that have columns
CUT: Final = 1e-9  # by which the ends of an interval differ that is not cut
FEW_TESTS: Final = 40  # test samples of a client; with fewer, chance chooses the worst clients
HALF: Final = (
    "with half the width of the 95 % interval, or with its ends where the scale of the score cuts"
    " it"
)
OF_SOME: Final = (
    "Recall and F1 of a class are means over the repetitions with test samples of the class."
)
WRITTEN: Final[Mapping[str, Write]] = {"bytes": size, "seconds": tenth, "rounds": "{:g}".format}
"""What writes costs; metrics are scores."""

Triple = tuple[float, float, float]
"""A mean with the ends of its interval: (mean, low, high)."""


def p_value(value: float) -> str:
    """Return a p-value.

    >>> p_value(0.04321), p_value(0.00001)
    ('0.0432', '< 0.0001')
    """
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def mean(value: Triple, write: Write = score) -> str:
    """Return the mean alone."""
    return write(value[0])


def interval(value: Triple, write: Write = score) -> str:
    """Return a mean with its interval; the mean alone if there is none.

    >>> interval((0.5, 0.4, 0.6)), interval((-0.5, -0.6, -0.4), "{:+.2f}".format)
    ('0.5000 [0.4000, 0.6000]', '-0.50 [-0.60, -0.40]')
    """
    middle, low, high = value
    return write(middle) if isnan(low) else f"{write(middle)} [{write(low)}, {write(high)}]"


signed: Final = partial(interval, write="{:+.4f}".format)
"""Returns a difference with its interval and with signs."""


def half_width(value: Triple, digits: int = 4) -> str:
    """Return a mean with half the width of its interval, or with both ends of one that is cut.

    >>> nan = float("nan")
    >>> [half_width(one) for one in ((0.5, 0.45, 0.55), (0.98, 0.93, 1.0), (0.5, nan, nan))]
    ['0.5000 ± 0.0500', '0.9800 [0.9300, 1.0000]', '0.5000']
    """
    middle, low, high = value
    if isnan(low) or abs(high + low - 2 * middle) > CUT:
        return interval(value, partial(score, digits=digits))
    return f"{score(middle, digits)} ± {score(high - middle, digits)}"


narrow: Final = partial(half_width, digits=3)
"""Returns a mean with half the width of its interval as papers have it."""


def wide(heading: str) -> Column:
    """Return a column of means with half the width of their intervals."""
    return Column(heading, half_width, narrow)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame as dicts."""
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def triples(table: pd.DataFrame, *by: str, name: str = "mean", of: str = "") -> dict[Any, Triple]:
    """Return means with the ends of their intervals by the values of columns."""
    keys = table[list(by)].itertuples(index=False, name=None)
    values = table[[name, f"{of}low", f"{of}high"]].itertuples(index=False, name=None)
    return dict(zip(keys, values, strict=True))


def complete_scores(analysis: Analysis, place: str) -> dict[tuple[str, str], Triple]:
    """Return the scores of a place by method and metric.

    A score that some repetitions of the method lack is left out: beside others, its mean would be
    one over other repetitions.
    """
    runs = at_place(analysis.leaderboard, place).set_index("method")["n"]
    rows = at_place(analysis.scores, place)
    return triples(rows[rows["n"] == rows["method"].map(runs)], "method", "metric")


def leaderboard(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the leaderboard of a place."""
    rows, known = records(at_place(analysis.leaderboard, place)), complete_scores(analysis, place)
    metric, *others = analysis.comparison.columns
    marks = _marks(analysis, place, rows)
    ends = "" if all(isnan(row["low"]) for row in rows) else " (95 % interval)"
    said = {
        "best": "Bold: the largest mean.",
        "like": "Underlined: no test tells it apart from the largest mean.",
        "apart": f"*: a significant difference from {one_line(analysis.comparison.baseline)}.",
    }

    def means(name: str) -> Column:
        """Return a column of means of a metric; papers have the intervals of scores too."""
        write = partial(mean, write=WRITTEN.get(name, score))
        return Column(words(name), write, None if name in WRITTEN else narrow)

    yield Shown(
        f"Leaderboard{analysis.comparison.at_work}",
        {
            "rank": Column("rank", whole),
            "method": Column("method"),
            "mean": Column(words(metric) + ends, interval, narrow),
            "std": Column("std", score),
            "last": Column("last round", score),
            "n": Column("runs", whole),
            "groups": Column("groups"),
            **{f"mean {name}": means(name) for name in others},
            "better_than": Column("better than"),
        },
        [
            row
            | {"mean": (row["mean"], row["low"], row["high"])}
            | {f"mean {name}": known.get((row["method"], name)) for name in others}
            for row in rows
        ],
        " ".join(_about_leaderboard(analysis, place, rows)),
        place,
        {(k, "mean"): mark for k, mark in marks.items()},
        " ".join(words for mark, words in said.items() if mark in " ".join(marks.values())),
        screen=("rank", "std", "last", "better_than"),
    )


def _marks(analysis: Analysis, place: str, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return what is said of rows of the leaderboard; nothing of a single method."""
    best = [row["method"] for row in rows if row["rank"] == 1]
    is_beside_one = analysis.comparison.reference is not None
    said: dict[str, str] = {}
    pairs = analysis.pairs[analysis.pairs["metric"] == analysis.comparison.metric]
    for first, second, verdict in at_place(pairs, place)[["first", "second", "verdict"]].to_numpy():
        if is_beside_one and verdict in ("better", "worse"):
            said[first] = "apart"
        elif not is_beside_one and verdict == "no significant difference":
            pair = {first, second}
            said |= dict.fromkeys(pair - {*best[:1]} if pair & {*best[:1]} else (), "like")
    if len(rows) > 1:
        said |= {method: f"best {said.get(method, '')}" for method in best}
    return {k: said[row["method"]] for k, row in enumerate(rows) if row["method"] in said}


def _about_leaderboard(
    analysis: Analysis, place: str, rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield what the columns of a leaderboard mean."""
    if max(row["n"] for row in rows) > 1:
        yield _over(analysis, place, ".")
    if any(row["groups"] for row in rows):
        yield "Methods whose groups have no common letter differ significantly."
    if any(is_missing(row["rank"]) for row in rows):
        yield (
            "Methods without a rank lack repetitions, so their means are over fewer repetitions"
            " than those of the others."
        )
    clients = at_place(analysis.clients, place)
    tests = clients["test_size"].median()
    has_worst = any(name == "worst10_accuracy" for _, name in complete_scores(analysis, place))
    if has_worst and clients["client"].nunique() > 1 and tests < FEW_TESTS:
        yield (
            f"The accuracy of the worst 10 % of clients is biased downwards: with {tests:.0f} test"
            " samples of a client, chance decides which clients are the worst."
        )


def _over(analysis: Analysis, place: str, end: str) -> str:
    """Return over what means are, and for which population."""
    population = analysis.comparison.sampling_at(place).population
    return ", ".join(filter(None, ["Means over repetitions", population])) + end


def rare(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the scores of the rare classes by method; nothing where no class is rare."""
    rows = at_place(analysis.classes, place)
    rare = rows[rows["rare"]].drop_duplicates("class").sort_values(["train_support", "class"])
    if rare.empty:
        return
    known = complete_scores(analysis, place)
    names = {row["class"]: short(str(row["name"])) for row in records(rare.head(MOST_RARE))}
    own = names if len(rare) > 1 else {}  # the means over a single class are its scores
    columns = {name: wide(words(name)) for name in RARE_METRICS}
    for what, heading in (("f1", "F1"), ("recall", "recall")):
        columns |= {f"{what} {one}": wide(f"{heading} of {name}") for one, name in own.items()}
        for (method, one), value in triples(
            rows, "method", "class", name=what, of=f"{what}_"
        ).items():
            known[method, f"{what} {one}"] = value
    more = f" and {len(rare) - len(names):,} more" if len(rare) > len(names) else ""
    lacks = rows.loc[rows["recall"].notna(), "n"].nunique() > 1 and own
    yield _by_method(
        "Rare classes",
        ranked(analysis, place),
        columns,
        known,
        f"Rare recall and rare F1 are means over the rare classes ({', '.join(names.values())}"
        f"{more}); macro F1 is the mean over all classes. Means over repetitions, {HALF}."
        + (f" {OF_SOME} Their mean can differ from rare recall and rare F1." if lacks else ""),
        place,
        screen=[key for key in columns if key not in RARE_METRICS],
    )


def _by_method(
    title: str,
    methods: Iterable[str],
    columns: Mapping[str, Column],
    known: Mapping[tuple[str, str], Any],
    about: str,
    place: str,
    screen: Sequence[str] = (),
) -> Shown:
    """Return a table with a row for each method, of values by method and key of a column."""
    rows = [
        {"method": method, **{key: known.get((method, key)) for key in columns}}
        for method in methods
    ]
    return Shown(title, {"method": Column("method"), **columns}, rows, about, place, screen=screen)


def scores(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield mean, standard deviation, interval and number of each column of a leaderboard."""
    names, methods = analysis.comparison.columns, ranked(analysis, place)
    table = at_place(analysis.scores, place)
    table = table[table["metric"].isin(names)].sort_values(
        ["metric", "method"], key=lambda one: one.map((*names, *methods).index)
    )
    rows = []
    for row in records(table):
        write = WRITTEN.get(row["metric"], score)
        cells = {what: write(row[what]) for what in ("mean", "std") if not isnan(row[what])}
        if not isnan(row["low"]):
            cells["low"] = f"{write(row['low'])} to {write(row['high'])}"
        rows.append({"metric": words(row["metric"]), **{k: row[k] for k in ("method", "n")}})
        rows[-1] |= cells
    yield Shown(
        "Scores with their deviations",
        {
            "metric": Column("metric"),
            "method": Column("method"),
            "mean": Column("mean", str),
            "std": Column("std", str),
            "low": Column("95 % interval", str),
            "n": Column("runs", whole),
        },
        rows,
        _over(analysis, place, "; ") + "std is the standard deviation between repetitions. All"
        " test metrics are in tables/scores.csv.",
        place,
    )


def pairs(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the differences between every two methods of a place, a table for each metric."""
    for metric, table in at_place(analysis.pairs, place).groupby("metric", sort=False):
        needed = table["needed"].fillna(inf).where(table["verdict"] == "no significant difference")
        table = table.assign(needed=needed.mask(table["test"] == CORRECTED))
        # For fixed clients the test that decides is this one already.
        has_other = bool(table["corrected"].notna().any() and table["test"].ne(CORRECTED).all())
        yield Shown(
            f"Differences in {words(str(metric))}",
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
                | {"difference": (row["difference"], row["low"], row["high"])}
                for row in records(table)
            ],
            " ".join(_about_pairs(analysis, place, table, has_other)),
            place,
        )


def _about_pairs(
    analysis: Analysis, place: str, table: pd.DataFrame, has_other: bool
) -> Iterator[str]:
    """Yield what the columns of a table of differences mean."""
    sampling = analysis.comparison.sampling_at(place)
    tests = [test for test in TESTS if table["test"].eq(test).any()]
    if tests:
        where = ", ".join(filter(None, [" and ".join(tests), sampling.population]))
        yield f"p: {where}. p (Holm): corrected {analysis.comparison.corrected_for}; it decides."
    elif sampling.why_not:
        yield f"There is no p: {sampling.why_not} support no claim. `--vary both` does."
    elif table["n"].max() < CLAIM_FROM:
        yield "There is no p: fewer than three repetitions are not tested."
    else:
        yield "There is no p: each difference is the same in all repetitions."
    if CORRECTED in tests:
        yield (
            "The test is that of Nadeau and Bengio, because the parts of the same clients overlap."
        )
    if has_other:
        yield (
            "p (other samples): corrected resampled t-test (Nadeau and Bengio) for other"
            " samples of the same kind, not corrected for several tests: repetitions have"
            f" {100 * sampling.shared:.0f} % of their samples in common."
        )
    yield (
        "P(improvement): share of repetitions in which the first method is better than the"
        " second; equal values count half."
    )
    if table["needed"].notna().any():
        yield (
            "Repetitions needed: to see a difference of this size with a probability of 80 %,"
            " where it is not significant."
        )


def _many(count: float) -> str:
    return f"> {MOST_NEEDED:,}" if count == inf else whole(count)


def targets(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield what it costs to reach the targets of a place, by split; nothing without a target."""
    for split, rows in at_place(analysis.targets, place).groupby("split", sort=False):
        about = (
            "The cost of a run is that of its first evaluation that reaches the target, and the"
            " table has the median over all runs of a method, in brackets the smallest and the"
            " largest cost of those that reach it. A run that ends without reaching the target"
            " counts as later than all others: where half of the runs or more do, there is a dash."
        )
        yield Shown(
            f"Costs until a {split} {words(analysis.comparison.metric)}",
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
            about,
            place,
        )


def _cost(what: str, value: Triple) -> str:
    """Return a cost of the table of targets, with its range over the runs that reach the target."""
    middle, low, high = map(WRITTEN[what], value)
    return middle if low == high else f"{middle} ({low} to {high})"


def classes(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield recall, precision and F1 by class and method of a place."""
    rows = at_place(analysis.classes, place)
    most = rows.sort_values("n", ascending=False, kind="stable")  # of repetitions
    first = most.drop_duplicates("class").sort_values(["train_support", "class"])
    about = (
        f"Means over repetitions, {HALF}; classes with the fewest training samples first. Numbers"
        " of samples and of clients are means over repetitions too."
    )
    if rows["n"].nunique() > 1:
        about += f" {OF_SOME}"
    columns = {
        "name": Column("class"),
        "train_support": Column("training samples", whole),
        "test_support": Column("test samples", whole),
        "holders": Column("clients with it", whole),
        "marks": Column("marks"),
    }
    own = [
        row | {"marks": tuple(mark for mark in ("rare", "confusable") if row[mark])}
        for row in records(first)
    ]
    for name, shown in CLASS_SCORES.items():
        known = triples(rows, "class", "method", name=name, of=f"{name}_")
        title = f"{shown[0].upper()}{shown[1:]} by class"
        yield _beside(analysis, place, title, columns, own, "class", known, about)


def _beside(
    analysis: Analysis,
    place: str,
    title: str,
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Any]],
    key: str,
    known: Mapping[tuple[Any, str], Triple],
    about: str,
) -> Shown:
    """Return a table of at most MOST_ROWS rows, with a column for each method beside others.

    `key` tells rows apart, and `known` has the values by it and by method.
    """
    methods = {method: f"of {method}" for method in ranked(analysis, place)}
    more = len(rows) - MOST_ROWS
    file = "classes" if key == "class" else "client_scores"
    what = "classes" if key == "class" else "clients"
    return Shown(
        title,
        {**columns, **{name: wide(one_line(m)) for m, name in methods.items()}},
        [
            {**row, **{name: known.get((row[key], m)) for m, name in methods.items()}}
            for row in rows[:MOST_ROWS]
        ],
        about + (f" {more:,} more {what} are in tables/{file}.csv." if more > 0 else ""),
        place,
    )


def clients(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield how the accuracy of the clients of a place is distributed, and that of each client."""
    table = at_place(analysis.client_spread, place)
    known = triples(table, "method", "measure")
    methods = ranked(analysis, place, table)
    about = (
        "Accuracy of the clients with test samples of a run: its mean over clients, its standard"
        " deviation between clients, the worst client, and quantiles; each as a mean over"
        f" repetitions, {HALF}."
    )
    if "gain" in set(table["measure"]):
        about += (
            " A client gains if its accuracy is larger than that of the model that it trains alone"
            " (method local) in the same repetition."
        )
    if "gain_ft" in set(table["measure"]):
        about += " A client is above ft if its accuracy is larger than that of fine-tuned FedAvg."
    columns = {measure: wide(title) for measure, title in SPREAD.items()}
    yield _by_method("Accuracy over clients", methods, columns, known, about, place)
    table = at_place(analysis.client_scores, place)
    if table.empty:  # repetitions draw clients anew
        return
    first = records(table.drop_duplicates("client").sort_values("client"))
    yield _beside(
        analysis,
        place,
        "Accuracy by client",
        {
            "label": Column("client"),
            "train_size": Column("training samples", whole),
            "test_size": Column("test samples", whole),
        },
        [
            row | {"label": short(str(row["name"]), MOST_LETTERS) or str(row["client"])}
            for row in first
        ],
        "client",
        triples(table, "client", "method", name="accuracy", of="accuracy_"),
        f"Mean over the repetitions in which the client has test samples, {HALF}. Numbers of"
        " samples are means over repetitions too.",
    )


def new_clients(analysis: Analysis, place: str) -> Iterator[Shown]:
    """Yield the scores of the clients that join after the training; nothing if no run has any."""
    table = at_place(analysis.new_clients, place)
    if table.empty:
        return
    what = analysis.comparison.at(place)[0].run.config.client_metric.replace("_", " ")
    epochs = {k: f"{k} epoch{'' if k == 1 else 's'}" for k in sorted({*table["epochs"]})}
    about = (
        f"Test {what} over the clients that trained in no round, after epochs of training on their"
        " own training parts, on a copy that is discarded. 0 epochs: the model that the server"
        f" would send. Gap: this {what} minus that of the clients that trained, after as many"
        " further epochs from their own models. The last columns are for the largest number of"
        " epochs; bytes and steps are those of a client."
    )
    known: dict[tuple[str, str], Any] = {}
    for row in records(table):  # the last columns have what the last row of a method has
        values = {f"new {row['epochs']}": (row["mean"], row["low"], row["high"]), **row}
        values[f"gap {row['epochs']}"] = row["gap"]
        known |= {(row["method"], key): value for key, value in values.items()}
    columns = {f"new {k}": wide(words) for k, words in epochs.items()}
    columns |= {f"gap {k}": Column(f"gap, {w}", "{:+.4f}".format) for k, w in epochs.items()}
    columns |= {"worst10": Column("worst 10 %", score)}
    columns |= {"received_bytes": Column("bytes to join", size), "steps": Column("steps", tenth)}
    methods = ranked(analysis, place, table)
    yield _by_method("Clients that join later", methods, columns, known, about, place)


def ranks(analysis: Analysis, place: str = "") -> Iterator[Shown]:
    """Yield the mean ranks over places; nothing for a single place."""
    across = analysis.across
    if across is None:
        return
    has_claims = has_rank_claims(analysis)
    best = str(across.ranks.index[0])
    beside = across.nemenyi[best].drop(best).to_dict() if has_claims else {}
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
            {"method": name, "rank": rank, "p": beside.get(name)}
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
            "path": Column("folder"),
        },
        records(analysis.comparison.runs),
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


def ranked(analysis: Analysis, place: str, table: pd.DataFrame | None = None) -> list[str]:
    """Return the methods of a place, or those of a table of it, in the order of the leaderboard."""
    methods = at_place(analysis.leaderboard, place)["method"]
    return [*(methods if table is None else methods[methods.isin(table["method"])])]


def at_place(table: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return the rows of a place."""
    return table[table["place"] == place]
