"""The tables of a comparison as tables of text, for pages, Markdown, LaTeX and the terminal."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench.analysis.progress import COSTS
from flbench.analysis.scores import DECILES
from flbench.analysis.statistics import CLAIM_FROM, MOST_NEEDED
from flbench.analysis.tables import (
    CLASS_SCORES,
    CORRECTED,
    TESTS,
    Analysis,
)
from flbench.core.text import one_line
from flbench.reports.picture import short
from flbench.reports.tables import Block, p_value, size

HEADINGS: Final = {
    "rare_recall": "rare recall",
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
MOST_CLIENTS: Final = 100  # rows of the table of clients
MOST_LETTERS: Final = 48  # of the name of a client
MOST_CLASSES: Final = 100  # rows of the table of classes
WHOLE: Final = ((0.0, 1.0), (-1.0, 1.0))  # intervals that are cut at both ends of their scale
FEW_TESTS: Final = 40  # test samples of a client; with fewer, chance chooses the worst clients


def of_place(analysis: Analysis, place: str) -> list[Block]:
    """Return the tables of one place that the report shows as Markdown."""
    found = [
        leaderboard_block(analysis, place),
        *pairs_blocks(analysis, place),
        scores_block(analysis, place),
        *targets_blocks(analysis, place),
        classes_block(analysis, place),
        client_spread_block(analysis, place),
        client_deciles_block(analysis, place),
        client_scores_block(analysis, place),
    ]
    return [block for block in found if block is not None and block.rows]


def leaderboard_block(analysis: Analysis, place: str) -> Block:
    """Return the leaderboard of a place."""
    rows = analysis.leaderboard[analysis.leaderboard["place"] == place]
    has_groups = bool((rows["groups"] != "").any())
    has_better = bool(rows["better_than"].map(len).any())
    has_std = bool(rows["std"].notna().any())
    has_last = bool(analysis.comparison.leading)
    metric, *others = shown_columns(analysis, place)
    means = complete_scores(analysis, place)
    columns = ["rank", "method", f"{heading_of(metric)} (95 % interval)"]
    columns += ["std"] if has_std else []
    columns += ["last round"] if has_last else []
    columns += ["runs"]
    columns += ["groups"] if has_groups else []
    columns += map(heading_of, others)
    columns += ["better than"] if has_better else []
    lines = []
    for row in records(rows):
        lines.append(
            (
                "-" if np.isnan(row["rank"]) else str(row["rank"]),
                *(one_line(row["method"]), interval(row)),
                *([number(row["std"])] if has_std else []),
                *([number(row["last"])] if has_last else []),
                str(row["n"]),
                *([row["groups"]] if has_groups else []),
                *(_mean_text(name, means.get((row["method"], name))) for name in others),
                *([one_line(", ".join(row["better_than"])) or "-"] if has_better else []),
            )
        )
    about = " ".join(_about_leaderboard(analysis, place, rows, has_groups=has_groups))
    return Block(f"{one_line(place)}: leaderboard", tuple(columns), tuple(lines), about, texts=(1,))


def shown_columns(analysis: Analysis, place: str) -> list[str]:
    """Return the metrics, `bytes` and `seconds` that tables of a place show.

    The metric that ranks is the first. Metrics that no method of the place has in all of its
    repetitions, such as those of rare classes where no class is rare, are left out.
    """
    known = {name for _, name in complete_scores(analysis, place)}
    metric, *others = analysis.comparison.columns
    return [metric, *(name for name in others if name in known)]


def complete_scores(analysis: Analysis, place: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of the table of scores of a place by method and metric.

    A score that some repetitions of the method lack is left out: beside others, its mean would be
    one over other repetitions.
    """
    runs = {row["method"]: row["n"] for row in records(analysis.leaderboard, place)}
    return {
        (row["method"], row["metric"]): row
        for row in records(analysis.scores, place)
        if row["n"] == runs[row["method"]]
    }


def _mean_text(metric: str, row: Mapping[str, Any] | None) -> str:
    """Return the mean of a score as text; a dash if there is none."""
    return "-" if row is None else value_text(metric, row["mean"])


def heading_of(metric: str) -> str:
    """Return the name of a metric as the heading of a column."""
    return HEADINGS.get(metric, one_line(metric.replace("_", " ")))


def value_text(metric: str, value: float, digits: int = 4) -> str:
    """Return a metric, bytes or seconds as text; a dash for NaN.

    >>> value_text("macro_f1", 0.51239), value_text("bytes", 1234.0), value_text("seconds", 2.34)
    ('0.5124', '1.2 kB', '2.3')
    """
    if np.isnan(value):
        return "-"
    if metric == "bytes":
        return size(value)
    return number(value, 1 if metric == "seconds" else digits)


def scores_block(analysis: Analysis, place: str) -> Block:
    """Return mean, standard deviation, interval and number of each column of a leaderboard."""
    names = shown_columns(analysis, place)
    table = analysis.scores[analysis.scores["place"] == place]
    table = table[table["metric"].isin(names)].assign(
        order=table["metric"].map({name: k for k, name in enumerate(names)})
    )
    ranked = analysis.leaderboard.loc[analysis.leaderboard["place"] == place, "method"]
    by_rank = {method: k for k, method in enumerate(ranked)}
    table = table.assign(rank=table["method"].map(by_rank)).sort_values(["order", "rank"])
    population = analysis.comparison.sampling_at(place).population
    return Block(
        f"{one_line(place)}: scores with their deviations",
        ("metric", "method", "mean", "std", "95 % interval", "runs"),
        tuple(
            (
                heading_of(row["metric"]),
                one_line(row["method"]),
                value_text(row["metric"], row["mean"]),
                value_text(row["metric"], row["std"]),
                _ends(row["metric"], row["low"], row["high"]),
                str(row["n"]),
            )
            for row in records(table)
        ),
        f"{', '.join(filter(None, ['Means over repetitions', population]))}; std is the standard"
        " deviation between repetitions. All test metrics are in tables/scores.csv.",
        texts=(0, 1),
    )


def _ends(metric: str, low: float, high: float) -> str:
    """Return the ends of an interval; a dash if there is none."""
    if np.isnan(low):
        return "-"
    return f"{value_text(metric, low)} to {value_text(metric, high)}"


def _about_leaderboard(
    analysis: Analysis, place: str, rows: pd.DataFrame, *, has_groups: bool
) -> Iterator[str]:
    """Yield what the columns of a leaderboard mean."""
    if rows["n"].max() > 1:
        population = analysis.comparison.sampling_at(place).population
        yield f"{', '.join(filter(None, ['Means over repetitions', population]))}."
    if has_groups:
        yield "Methods whose groups have no common letter differ significantly."
        if (rows["groups"] == "").any():
            yield "Methods without a letter were not tested."
    if rows["rank"].isna().any():
        yield (
            "Methods without a rank lack repetitions, so their means are over fewer repetitions"
            " than those of the others."
        )
    clients = analysis.clients[analysis.clients["place"] == place]
    tests = clients["test_size"].median()
    has_worst = "worst10_accuracy" in shown_columns(analysis, place)
    if has_worst and clients["client"].nunique() > 1 and tests < FEW_TESTS:
        yield (
            f"The accuracy of the worst 10 % of clients is too low: with {tests:.0f} test samples"
            " of a client, chance chooses the worst."
        )


def pairs_blocks(analysis: Analysis, place: str) -> list[Block]:
    """Return the differences between every two methods of a place, a table for each metric.

    There is none for a single method, nor for a metric that no two methods have.
    """
    mine = analysis.pairs[analysis.pairs["place"] == place]
    by_metric = mine.groupby("metric", sort=False)
    return [_pairs_block(analysis, place, str(metric), rows) for metric, rows in by_metric]


def _pairs_block(analysis: Analysis, place: str, metric: str, rows: pd.DataFrame) -> Block:
    """Return the differences in one metric, of which `rows` are those of `Analysis.pairs`."""
    # For fixed clients the test that decides is this one already.
    has_other = bool(rows["corrected"].notna().any()) and CORRECTED not in set(rows["test"])
    lines = [
        (
            one_line(f"{row['first']} - {row['second']}"),
            _signed(row),
            str(row["n"]),
            p_value(row["p"]),
            p_value(row["p_holm"]),
            *([p_value(row["corrected"])] if has_other else []),
            number(row["probability"], 2),
            row["verdict"],
            _needed(row),
        )
        for row in records(rows)
    ]
    return Block(
        f"{one_line(place)}: differences in {metric}",
        (
            *("difference", "mean (95 % interval)", "runs", "p", "p (Holm)"),
            *(["p (other samples)"] if has_other else []),
            *("P(improvement)", "verdict", "repetitions needed"),
        ),
        tuple(lines),
        " ".join(_about_pairs(analysis, place, rows, has_other=has_other)),
        texts=(0, 7 if has_other else 6),
    )


def _about_pairs(
    analysis: Analysis, place: str, rows: pd.DataFrame, *, has_other: bool
) -> Iterator[str]:
    """Yield what the columns of the table of differences mean."""
    comparison, sampling = analysis.comparison, analysis.comparison.sampling_at(place)
    tests = [test for test in TESTS if test in set(rows["test"])]
    where = ", ".join(filter(None, [" and ".join(tests), sampling.population]))
    if tests:
        yield f"p: {where}. p (Holm): corrected {comparison.corrected_for}; it decides."
    if CORRECTED in tests:
        yield (
            "The test is that of Nadeau and Bengio, because the parts of the same clients overlap."
        )
    if sampling.why_not:
        yield f"There is no p: {sampling.why_not} support no claim. Repeat with `--vary both`."
    elif not tests and rows["n"].max() < CLAIM_FROM:
        yield "There is no p: differences over fewer than three repetitions are not tested."
    elif not tests:
        yield "There is no p: each difference is the same in all repetitions."
    if has_other:
        yield (
            "p (other samples): corrected resampled t-test (Nadeau and Bengio), not corrected for"
            " several tests. It is for other samples of the same kind: repetitions have"
            f" {100 * sampling.shared:.0f} % of their samples in common, so they tell less about"
            " those."
        )
    yield (
        "P(improvement): share of repetitions in which the first method is better than the second;"
        " equal values count half."
    )
    if (rows["verdict"] == "no significant difference").any() and not sampling.overlap:
        yield (
            "Repetitions needed: to see a difference of this size with a probability of 80 %, where"
            " it is not significant."
        )


def targets_blocks(analysis: Analysis, place: str) -> list[Block]:
    """Return what it costs to reach the targets of a place, by split; empty without a target."""
    table = analysis.targets[analysis.targets["place"] == place]
    return [
        _targets_block(analysis, place, str(split), rows)
        for split, rows in table.groupby("split", sort=False)
    ]


def _targets_block(analysis: Analysis, place: str, split: str, rows: pd.DataFrame) -> Block:
    targets = rows["target"].unique()
    is_one = len(targets) == 1
    lines = [
        (
            *([] if is_one else [f"{row['target']:g}"]),
            one_line(row["method"]),
            f"{100 * row['share']:.0f} % ({row['reached']} of {row['n']})",
            *(_cost(row, what) for what in COSTS),
        )
        for row in records(rows)
    ]
    metric = f"{split} {heading_of(analysis.comparison.metric)}"
    what = f"a {metric} of {targets[0]:.4g}" if is_one else f"values of {metric}"
    about = [_about_target(analysis)]
    curves = analysis.curves[analysis.curves["place"] == place]
    often = int(np.diff(np.unique(curves.loc[curves["split"] == split, "round"])).max(initial=1))
    every = f"Each run is evaluated every {often} rounds. " if often > 1 else ""
    if split == "test":
        about.append("Test parts choose nothing in a run: this table only describes it.")
    about.append(
        f"{every}The cost of a run is that of its first evaluation that reaches the target, and the"
        " table has the median over all runs of a method. A run that ends without reaching the"
        " target is censored: it counts as later than all others, so where half of the runs or more"
        " do, the median is not reached."
    )
    if any(row["reached"] > 1 for row in records(rows)):
        about.append("In brackets: the smallest and the largest cost of the runs that reach it.")
    return Block(
        f"{one_line(place)}: costs until {what}",
        (*([] if is_one else ["target"]), "method", "runs that reach it", *COSTS),
        tuple(lines),
        " ".join(about),
        texts=(0,) if is_one else (1,),
    )


def _cost(row: Mapping[str, Any], what: str) -> str:
    """Return a cost of the table of targets, with its range over the runs that reach the target."""
    if np.isnan(row[what]):
        return "not reached"
    shown = {"rounds": "{:g}".format, "bytes": size, "seconds": "{:.1f}".format}[what]
    low, high = shown(row[f"{what}_min"]), shown(row[f"{what}_max"])
    return shown(row[what]) if low == high else f"{shown(row[what])} ({low} to {high})"


def _about_target(analysis: Analysis) -> str:
    """Return where the target of a place comes from."""
    targets = analysis.comparison.targets
    if not targets:
        return "The target is evaluation.target_accuracy."
    return f"The user has named the target{'s' if len(targets) > 1 else ''}."


def classes_block(analysis: Analysis, place: str, score: str = "recall", digits: int = 4) -> Block:
    """Return a score by class and method of a place.

    Args:
        analysis: The tables.
        place: Label of the place.
        score: `recall`, `precision` or `f1`.
        digits: Decimals of the score.
    """
    rows = analysis.classes[analysis.classes["place"] == place]
    methods = [name for name in analysis.comparison.methods if name in set(rows["method"])]
    known = {(row["class"], row["method"]): row for row in records(rows)}
    has_width = rows[f"{score}_low"].notna().any()
    most = rows.sort_values("n", ascending=False, kind="stable")  # of repetitions
    first = most.drop_duplicates("class").sort_values(["train_support", "class"])
    shown = CLASS_SCORES[score]
    about = (
        f"{shown[0].upper()}{shown[1:]}, mean over repetitions"
        f"{', with half the width of its 95 % interval' if has_width else ''}; classes with the"
        " fewest training samples first. Numbers of samples and of clients are means over"
        " repetitions too."
    )
    if score != "precision" and rows["n"].nunique() > 1:
        about += (
            f" {shown[0].upper()}{shown[1:]} is a mean over the repetitions with test samples of"
            " the class."
        )
    if len(first) > MOST_CLASSES:
        about += (
            f" The rarest {MOST_CLASSES} of {len(first):,} classes; the others are in the CSV file."
        )
    lines = []
    for row in records(first.head(MOST_CLASSES)):
        marks = [name for name in ("rare", "confusable") if row[name]]
        lines.append(
            (
                one_line(str(row["name"])),
                f"{row['train_support']:.0f}",
                f"{row['test_support']:.0f}",
                "-" if np.isnan(row["holders"]) else f"{row['holders']:.0f}",
                ", ".join(marks) or "-",
                *(_cell(known.get((row["class"], name)), score, digits) for name in methods),
            )
        )
    return Block(
        f"{one_line(place)}: {shown} by class",
        (
            *("class", "training samples", "test samples", "clients with it", "marks"),
            *map(one_line, methods),
        ),
        tuple(lines),
        about,
        texts=(0, 4),
    )


def _cell(row: Mapping[str, Any] | None, score: str, digits: int) -> str:
    """Return the mean of a score of a class or client with half the width of its interval.

    Args:
        row: Row of the table; None for one that is missing.
        score: Name of the score.
        digits: Decimals.
    """
    if row is None:
        return "-"
    return with_width(row[score], row[f"{score}_low"], row[f"{score}_high"], digits)


def client_spread_block(analysis: Analysis, place: str, digits: int = 4) -> Block:
    """Return how the accuracy of the clients of a place is distributed, by method."""
    table = analysis.client_spread[analysis.client_spread["place"] == place]
    methods = [name for name in analysis.comparison.methods if name in set(table["method"])]
    measures = [name for name in SPREAD if name in set(table["measure"])]
    known = {(row["method"], row["measure"]): row for row in records(table)}
    lines = []
    for method in methods:
        cells = [known.get((method, measure)) for measure in measures]
        lines.append(
            (
                one_line(method),
                *("-" if cell is None else with_width_of(cell, digits) for cell in cells),
            )
        )
    has_width = bool(table["low"].notna().any())
    about = (
        "Accuracy of the clients with test samples of a run: its mean over clients, its standard"
        " deviation between clients, the worst client, and quantiles; each as a mean over"
        f" repetitions{', with half the width of its 95 % interval' if has_width else ''}."
    )
    if "gain" in measures:
        about += (
            " A client gains if its accuracy is larger than that of the model that it trains alone"
            " (method local) in the same repetition."
        )
    if "gain_ft" in measures:
        about += " A client is above ft if its accuracy is larger than that of fine-tuned FedAvg."
    return Block(
        f"{one_line(place)}: accuracy over clients",
        ("method", *(SPREAD[measure] for measure in measures)),
        tuple(lines),
        about,
    )


def client_deciles_block(analysis: Analysis, place: str, digits: int = 4) -> Block:
    """Return the deciles of the accuracy over the clients of a place, by method."""
    table = analysis.client_spread[analysis.client_spread["place"] == place]
    known = {(row["method"], row["measure"]): row for row in records(table)}
    methods = [name for name in analysis.comparison.methods if name in set(table["method"])]
    lines = []
    for method in methods:
        cells = [known.get((method, measure)) for measure in DECILES]
        shown = ("-" if cell is None else number(cell["mean"], digits) for cell in cells)
        lines.append((one_line(method), *shown))
    return Block(
        f"{one_line(place)}: deciles over clients",
        ("method", *(f"{share:.0%}" for share in DECILES.values())),
        tuple(lines),
        "Accuracy below which a tenth of the clients with test samples of a run lie, two tenths,"
        " and so on; each as a mean over repetitions.",
    )


def client_scores_block(analysis: Analysis, place: str, digits: int = 4) -> Block | None:
    """Return the accuracy of each client of a place by method.

    Returns:
        The table, of the first 100 clients; None where repetitions draw clients anew.
    """
    table = analysis.client_scores[analysis.client_scores["place"] == place]
    if table.empty:
        return None
    methods = [name for name in analysis.comparison.methods if name in set(table["method"])]
    first = table.drop_duplicates("client").sort_values("client")
    known = {(row["client"], row["method"]): row for row in records(table)}
    more = len(first) - MOST_CLIENTS
    has_width = bool(table["accuracy_low"].notna().any())
    about = (
        "Mean over the repetitions in which the client has test samples"
        f"{', with half the width of its 95 % interval' if has_width else ''}. Numbers of samples"
        " are means over repetitions too."
    )
    if more > 0:
        about += f" {more:,} more clients are in tables/client_scores.csv."
    lines = []
    for row in records(first.head(MOST_CLIENTS)):
        cells = [known.get((row["client"], method)) for method in methods]
        lines.append(
            (
                short(str(row["name"]), MOST_LETTERS) or str(row["client"]),
                *(f"{row[part]:.0f}" for part in ("train_size", "test_size")),
                *(_cell(one, "accuracy", digits) for one in cells),
            )
        )
    return Block(
        f"{one_line(place)}: accuracy by client",
        ("client", "training samples", "test samples", *map(one_line, methods)),
        tuple(lines),
        about,
    )


def ranks_block(analysis: Analysis) -> Block:
    """Return the mean ranks over places; there are at least two."""
    across = analysis.across
    if across is None:
        raise ValueError("ranks need two places")
    has_claims = has_rank_claims(analysis)
    best = str(across.ranks.index[0])
    beside = across.nemenyi[best].to_dict() if has_claims else {}
    lines = [
        (
            one_line(str(name)),
            f"{rank:.2f}",
            "-" if name == best or not has_claims else p_value(float(beside[name])),
        )
        for name, rank in across.ranks.items()
    ]
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
            about.append(f"Friedman's test: p {_equals(across.friedman)}.")
        about.append(
            f"Mean ranks that differ by {across.critical:.2f} or more differ significantly."
        )
    return Block(
        f"Ranks over {across.places} places",
        ("method", "mean rank", f"p beside {one_line(best)} (Nemenyi)"),
        tuple(lines),
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


def _equals(p: float) -> str:
    """Return a p-value with its sign, as in `p = 0.0432`."""
    shown = p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"


def number(value: float, digits: int = 4) -> str:
    """Return a number with four decimals; a dash for NaN."""
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def interval(row: Mapping[str, Any]) -> str:
    """Return a mean with its interval.

    >>> interval({"mean": 0.5, "low": 0.4, "high": 0.6})
    '0.5000 [0.4000, 0.6000]'
    """
    if np.isnan(row["low"]):
        return number(row["mean"])
    return f"{number(row['mean'])} [{number(row['low'])}, {number(row['high'])}]"


def with_width(value: float, low: float, high: float, digits: int = 4) -> str:
    """Return a mean with half the width of its interval, which can be cut at one end of the scale.

    >>> nan = float("nan")
    >>> with_width(0.5, 0.45, 0.55), with_width(0.98, 0.93, 1.0), with_width(0.5, nan, nan)
    ('0.5000 ± 0.0500', '0.9800 ± 0.0500', '0.5000')
    >>> with_width(0.4, 0.0, 1.0)  # it is cut at both ends
    '0.4000 [0, 1]'
    """
    if np.isnan(low):
        return number(value, digits)
    if (low, high) in WHOLE:
        return f"{number(value, digits)} [{low:.0f}, {high:.0f}]"
    return f"{number(value, digits)} ± {number(max(high - value, value - low), digits)}"


def with_width_of(row: Mapping[str, Any], digits: int) -> str:
    """Return the mean of a score with half the width of its interval."""
    return with_width(row["mean"], row["low"], row["high"], digits)


def _signed(row: Mapping[str, Any]) -> str:
    """Return a difference with its sign and its interval."""
    if np.isnan(row["low"]):
        return f"{row['difference']:+.4f}"
    return f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def _needed(row: Mapping[str, Any]) -> str:
    """Return the number of repetitions to see a difference that is not significant."""
    if row["verdict"] != "no significant difference" or row["test"] == CORRECTED:
        return "-"
    return f"> {MOST_NEEDED:,}" if np.isnan(row["needed"]) else f"{row['needed']:.0f}"


def records(table: pd.DataFrame, place: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, of one place or of all."""
    mine = table if place is None else table[table["place"] == place]
    names = [str(name) for name in table.columns]
    return [dict(zip(names, row, strict=True)) for row in mine.itertuples(index=False, name=None)]
