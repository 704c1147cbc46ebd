"""The report of a comparison as Markdown, LaTeX, JSON and CSV."""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench import __version__
from flbench.analysis.arrangement import Arrangement
from flbench.analysis.sampling import VARIED
from flbench.analysis.statistics import CLAIM_FROM, MOST_NEEDED, Across
from flbench.analysis.tables import (
    CLASS_SCORES,
    CORRECTED,
    COSTS,
    MODERATED,
    TESTS,
    Analysis,
    given_target,
)
from flbench.core.csv_text import csv_text
from flbench.core.markup import in_latex, in_markdown
from flbench.core.printable import one_line
from flbench.reports.tables import Block, markdown, p_value, size

TABLES: Final = ("leaderboard", "pairs", "classes", "clients", "curves", "targets")
"""Names of the tables of an Analysis that are DataFrames, and of their CSV files."""
MOST_CLASSES: Final = 100  # rows of the table of classes
NO_NUMBER: Final = "no number"
"""Repetitions needed where the variance of the corrected test has a floor."""
FEW_TESTS: Final = 40  # test samples of a client; with fewer, chance chooses the worst clients


def csv_of(analysis: Analysis, name: str) -> str:
    """Return a table as CSV; NaN is an empty cell, and tuples are joined by semicolons.

    The tables of runs that are not comparable have a column `warning`.

    Args:
        analysis: The tables.
        name: One of TABLES.
    """
    table = _frame(analysis, name)
    if analysis.comparison.apart is not None:
        table = table.assign(warning=f"not comparable: {analysis.comparison.apart}")
    rows = [[_cell(value) for value in row] for row in table.itertuples(index=False, name=None)]
    return csv_text(tuple(table.columns), rows)


def json_of(analysis: Analysis) -> str:
    """Return the report as JSON; see `tree_of`."""
    return json.dumps(tree_of(analysis), indent=1) + "\n"


def tree_of(analysis: Analysis) -> dict[str, Any]:
    """Return the report as values of JSON.

    Returns:
        A dict with the keys `flbench` (version), `answer`, `warnings`, `methods`, `places`,
        `repetitions`, `vary`, `metric`, `baseline`, `populations` (for what the claims of each
        place hold) and `kinds` (of partition, by place); for each of TABLES a list of rows as
        objects; `across`, null for a single place; and `runs`, the folders. NaN is null.
    """
    comparison = analysis.comparison
    tree = {
        "flbench": __version__,
        "answer": analysis.answer,
        **facts(comparison),
        "populations": {
            place: comparison.sampling_at(place).population for place in comparison.places
        },
        "kinds": comparison.kinds,
        "warnings": comparison.warnings,
        **{name: records(_frame(analysis, name)) for name in TABLES},
        "across": None if analysis.across is None else _across_tree(analysis.across),
        "runs": [
            {
                "place": entry.place,
                "method": entry.method,
                "repetition": entry.repetition,
                "path": entry.folder,
                **{key: entry.run.summary[key] for key in ("config_hash", "weights_digest")},
            }
            for entry in comparison.entries
        ],
    }
    found: dict[str, Any] = finite(tree)
    return found


def facts(comparison: Arrangement) -> dict[str, Any]:
    """Return what was compared, by name."""
    names = ("methods", "places", "repetitions", "vary", "metric", "baseline")
    return {name: getattr(comparison, name) for name in names}


def heading(comparison: Arrangement) -> str:
    """Return the title of the report."""
    if len(comparison.methods) == 1:
        return f"{comparison.methods[0]} on {'; '.join(comparison.places)}"
    if comparison.reference is not None:
        count, where = len(comparison.methods) - 1, "; ".join(comparison.places)
        noun = "method" if count == 1 else "methods"
        return f"{count} {noun} compared with {comparison.reference} on {where}"
    return f"{len(comparison.methods)} methods on {'; '.join(comparison.places)}"


def about(comparison: Arrangement) -> str:
    """Return what differs between repetitions, and what all figures are."""
    count = comparison.repetitions
    kinds = {place: comparison.sampling_at(place).vary for place in comparison.places}
    varied = VARIED[comparison.vary]
    if len(set(kinds.values())) > 1:
        varied = "; ".join(f"{one_line(place)}: {VARIED[kind]}" for place, kind in kinds.items())
    return (
        f"{count} {'repetition' if count == 1 else 'repetitions'} at most: {varied}. All figures"
        f" are test metrics of {comparison.measured}. Intervals have a"
        " confidence level of 95 % and are taken over repetitions, never over the clients of one"
        " run. Bytes are those of all clients and rounds, set-up included; seconds are those of"
        " training and evaluation."
    )


def markdown_of(analysis: Analysis) -> str:
    """Return the report as Markdown, without pictures."""
    comparison = analysis.comparison
    parts = [f"# {in_markdown(heading(comparison))}"]
    parts += map(in_markdown, analysis.answer)
    parts += [f"**{in_markdown(sentence)}**" for sentence in comparison.warnings]
    for place in comparison.places:
        parts += [markdown(block) for block in blocks(analysis, place)]
    if analysis.across is not None:
        parts.append(markdown(ranks_block(analysis)))
    parts.append(in_markdown(about(comparison)))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def blocks(analysis: Analysis, place: str) -> list[Block]:
    """Return the tables of one place: leaderboard, differences, targets, classes."""
    found = [
        leaderboard_block(analysis, place),
        pairs_block(analysis, place),
        targets_block(analysis, place),
        classes_block(analysis, place),
    ]
    return [block for block in found if block is not None and block.rows]


def leaderboard_block(analysis: Analysis, place: str) -> Block:
    """Return the leaderboard of a place."""
    rows = analysis.leaderboard[analysis.leaderboard["place"] == place]
    has_rare = bool(rows["rare_recall"].notna().any())
    has_groups = bool((rows["groups"] != "").any())
    metric = analysis.comparison.metric
    columns = ["rank", "method", f"{metric} (95 % interval)", "runs"]
    columns += ["groups"] if has_groups else []
    columns += ["rare recall"] if has_rare else []
    columns += ["macro F1", "worst 10 %", "bytes", "seconds"]
    columns += ["better than"] if has_groups else []
    lines = []
    for row in records(rows):
        lines.append(
            (
                "-" if np.isnan(row["rank"]) else str(row["rank"]),
                *(one_line(row["method"]), interval(row), str(row["n"])),
                *([row["groups"]] if has_groups else []),
                *([number(row["rare_recall"])] if has_rare else []),
                *(number(row["macro_f1"]), number(row["worst10_accuracy"])),
                *(size(row["bytes"]), f"{row['seconds']:.1f}"),
                *([one_line(", ".join(row["better_than"])) or "-"] if has_groups else []),
            )
        )
    about = " ".join(_about_leaderboard(analysis, place, rows, has_groups=has_groups))
    return Block(f"{one_line(place)}: leaderboard", tuple(columns), tuple(lines), about, texts=(1,))


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
    if clients["client"].nunique() > 1 and tests < FEW_TESTS:
        yield (
            f"The accuracy of the worst 10 % of clients is too low: with {tests:.0f} test samples"
            " of a client, chance chooses the worst."
        )


def pairs_block(analysis: Analysis, place: str) -> Block | None:
    """Return the differences between every two methods of a place; None for a single method."""
    rows = analysis.pairs[analysis.pairs["place"] == place]
    if not len(rows):
        return None
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
        f"{one_line(place)}: differences in {analysis.comparison.metric}",
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
    if MODERATED in tests:
        yield (
            "The test (Smyth) takes the variances of all differences into account; the intervals do"
            " not."
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
    if rows["floor"].notna().any():
        yield (
            "Repetitions needed: to see a difference of this size with a probability of 80 %, where"
            " it is not significant; in brackets for the ends of the 80 % interval of the ratio of"
            " the difference to its standard deviation."
        )
    if NO_NUMBER in {_needed(row) for row in records(rows)}:
        yield (
            "No number: the variance of the corrected test has a floor, which further repetitions"
            " do not lower: to be seen with a probability of 80 %, such a difference must be"
            f" {rows['floor'].min():.4f} or larger. More samples can help, because repetitions then"
            " differ less."
        )


def targets_block(analysis: Analysis, place: str) -> Block | None:
    """Return rounds, bytes and seconds until the target of a place; None without a target."""
    rows = records(analysis.targets, place)
    if not rows:
        return None
    lines = [
        (
            one_line(row["method"]),
            f"{row['reached']} of {row['n']}",
            *(_cost(row, what) for what in COSTS),
        )
        for row in rows
    ]
    first = rows[0]
    metric, split = analysis.comparison.metric, first["split"]
    note = " (there is no validation part)" if split == "test" else ""
    return Block(
        f"{one_line(place)}: costs until {split} {metric} {first['target']:.4f}{note}",
        ("method", "runs that reached it", "rounds", "bytes", "seconds"),
        tuple(lines),
        f"{_about_target(analysis, place)} Medians over all runs of a method; a run that does not"
        " reach the target counts as more expensive than any that does. A cost after > is that of"
        " whole runs: half of the runs or more do not reach the target, so the method has no median"
        " to compare.",
    )


def _cost(row: Mapping[str, Any], what: str) -> str:
    """Return a cost of the table of targets; a lower bound if the median is not known."""
    is_known = not np.isnan(row[what])
    value = row[what] if is_known else row[f"least_{what}"]
    shown = {"rounds": "{:g}".format, "bytes": size, "seconds": "{:.1f}".format}[what](value)
    return shown if is_known else f"> {shown}"


def _about_target(analysis: Analysis, place: str) -> str:
    """Return where the target of a place comes from."""
    comparison = analysis.comparison
    if given_target(comparison, place) is not None:
        return "The target is evaluation.target_accuracy."
    count = len(comparison.at(place, comparison.baseline))
    return (
        f"The target is what the baseline {one_line(comparison.baseline)} has at the end of its"
        f" {'run' if count == 1 else f'{count} runs, in the mean'}."
    )


def classes_block(analysis: Analysis, place: str, score: str = "recall") -> Block:
    """Return a score by class and method of a place.

    Args:
        analysis: The tables.
        place: Label of the place.
        score: `recall`, `precision` or `f1`.
    """
    rows = analysis.classes[analysis.classes["place"] == place]
    methods = [name for name in analysis.comparison.methods if name in set(rows["method"])]
    wide = rows.pivot_table(index="class", columns="method", values=score, dropna=False)
    first = rows.drop_duplicates("class").sort_values(["train_support", "class"])
    shown = CLASS_SCORES[score]
    about = (
        f"{shown[0].upper()}{shown[1:]}, mean over repetitions; classes with the fewest training"
        " samples first. Numbers of samples and of clients are means over repetitions too."
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
                *(number(wide.loc[row["class"]].get(name, np.nan)) for name in methods),
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


def ranks_block(analysis: Analysis) -> Block:
    """Return the mean ranks over places; there are at least two."""
    comparison, across = analysis.comparison, analysis.across
    if across is None:
        raise ValueError("ranks need two places")
    board = analysis.leaderboard
    has_claims = board.loc[board["method"].isin(across.ranks.index), "n"].min() >= CLAIM_FROM
    has_claims &= all(comparison.sampling_at(one).supports_claims for one in comparison.places)
    best = str(across.ranks.index[0])
    beside = across.nemenyi[best].to_dict() if has_claims else {}
    lines = [
        (
            one_line(str(name)),
            f"{rank:.2f}",
            number(across.interquartile[str(name)].value),
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
        ("method", "mean rank", "interquartile mean", f"p beside {one_line(best)} (Nemenyi)"),
        tuple(lines),
        " ".join(about),
    )


def _equals(p: float) -> str:
    """Return a p-value with its sign, as in `p = 0.0432`."""
    shown = p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"


def latex_of(analysis: Analysis) -> str:
    """Return the leaderboards as tables of LaTeX, for the packages booktabs and amsmath.

    The best mean of a place is bold. Means of methods that a test does not tell apart from the best
    one are underlined; with a reference, those that differ significantly from it have a star. With
    fewer than three repetitions there is no test.
    """
    comparison = analysis.comparison
    parts = ["% \\usepackage{booktabs}"]
    parts += [f"% {sentence}" for sentence in map(one_line, comparison.warnings)]
    for place in comparison.places:
        rows = records(analysis.leaderboard, place)
        has_rare = any(not np.isnan(row["rare_recall"]) for row in rows)
        best = rows[0]
        counts = sorted({row["n"] for row in rows})
        is_beside_one = comparison.reference is not None
        like = set() if is_beside_one else _like_best(analysis, place, best["method"])
        apart = _unlike_reference(analysis, place) if is_beside_one else set()
        lines = []
        for row in rows:
            value = _latex_value(row)
            if row["rank"] == 1:
                value = f"\\textbf{{{value}}}"
            elif row["method"] in like:
                value = f"\\underline{{{value}}}"
            if row["method"] in apart:
                value += "$^{*}$"
            cells = [
                in_latex(row["method"]),
                value,
                *([str(row["n"])] if len(counts) > 1 else []),
                *([number(row["rare_recall"], 3)] if has_rare else []),
                *(number(row["macro_f1"], 3), number(row["worst10_accuracy"], 3)),
                *(in_latex(size(row["bytes"])), f"{row['seconds']:.1f}"),
            ]
            lines.append(" & ".join(cells) + " \\\\")
        header = ["method", in_latex(comparison.metric.replace("_", " "))]
        header += ["runs"] if len(counts) > 1 else []
        header += ["rare recall"] if has_rare else []
        header += ["macro F1", "worst 10\\,\\%", "bytes", "seconds"]
        warning = " ".join(in_latex(s) for s in comparison.warnings)
        has_width = any(not np.isnan(row["low"]) for row in rows)
        width = " and half the width of the 95\\,\\% interval" if has_width else ""
        runs = " to ".join(map(str, counts if len(counts) < 2 else (counts[0], counts[-1])))
        under = "; underlined: no significant difference from it" if like else ""
        where = ""
        if (like or apart) and (population := comparison.sampling_at(place).population):
            where = f", {population}"
        if apart:
            under += f"; *: differs significantly from {in_latex(comparison.baseline)}"
        caption = (
            f"{in_latex(place)}: mean over {runs} repetitions{width};"
            f" {VARIED[comparison.sampling_at(place).vary]}. Bold: largest mean{under}{where}."
            f" {warning}"
        )
        parts += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{caption.strip()}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            "\\toprule",
            " & ".join(header) + " \\\\",
            "\\midrule",
            *lines,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
    return "\n".join(parts) + "\n"


def _like_best(analysis: Analysis, place: str, best: str) -> set[str]:
    """Return the methods that a test does not tell apart from the best one of a place."""
    return {
        row["second"] if row["first"] == best else row["first"]
        for row in records(analysis.pairs, place)
        if best in (row["first"], row["second"]) and row["verdict"] == "no significant difference"
    }


def _unlike_reference(analysis: Analysis, place: str) -> set[str]:
    """Return the methods that differ significantly from the reference in a place."""
    return {
        row["first"]
        for row in records(analysis.pairs, place)
        if row["verdict"] in ("better", "worse")
    }


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


def _signed(row: Mapping[str, Any]) -> str:
    """Return a difference with its sign and its interval."""
    if np.isnan(row["low"]):
        return f"{row['difference']:+.4f}"
    return f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def _needed(row: Mapping[str, Any]) -> str:
    """Return the number of repetitions to see a difference that is not significant."""
    if row["verdict"] != "no significant difference" or np.isnan(row["floor"]):
        return "-"
    if row["floor"] and abs(row["difference"]) <= row["floor"]:
        return NO_NUMBER
    low, value, high = (_count(row[name]) for name in ("needed_low", "needed", "needed_high"))
    return value if low == value == high else f"{value} ({low} to {high})"


def _count(repetitions: float) -> str:
    """Return a number of repetitions as text."""
    return f"> {MOST_NEEDED:,}" if np.isnan(repetitions) else f"{repetitions:.0f}"


def _latex_value(row: Mapping[str, Any]) -> str:
    """Return a mean with half the width of its interval."""
    if np.isnan(row["low"]):
        return f"{row['mean']:.3f}"
    if row["low"] == 0 and row["high"] == 1:  # cut at both ends of the scale
        return f"{row['mean']:.3f} [0, 1]"
    half = max(row["high"] - row["mean"], row["mean"] - row["low"])
    return f"{row['mean']:.3f} $\\pm$ {half:.3f}"


def records(table: pd.DataFrame, place: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, of one place or of all."""
    mine = table if place is None else table[table["place"] == place]
    names = [str(name) for name in table.columns]
    return [dict(zip(names, row, strict=True)) for row in mine.itertuples(index=False, name=None)]


def _frame(analysis: Analysis, name: str) -> pd.DataFrame:
    table: pd.DataFrame = getattr(analysis, name)
    return table


def _cell(value: Any) -> Any:
    """Return a value as a cell of CSV."""
    if isinstance(value, tuple):
        return "; ".join(value)
    if isinstance(value, bool | np.bool_):
        return int(value)
    return None if isinstance(value, float) and np.isnan(value) else value


def _across_tree(across: Across) -> dict[str, Any]:
    """Return the comparison over places as values of JSON."""
    return {
        "ranks": across.ranks.to_dict(),
        "places": across.places,
        "friedman": across.friedman,
        "nemenyi": across.nemenyi.to_dict(),
        "critical": across.critical,
        "groups": across.groups,
        "interquartile": {
            name: [estimate.value, estimate.low, estimate.high]
            for name, estimate in across.interquartile.items()
        },
        "profiles": records(across.profiles),
    }


def finite(tree: Any) -> Any:
    """Return a tree as values of JSON: keys are text, NaN and infinity are null."""
    if isinstance(tree, Mapping):
        return {str(key): finite(value) for key, value in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [finite(value) for value in tree]
    if isinstance(tree, np.generic):
        return finite(tree.item())
    return None if isinstance(tree, float) and not isfinite(tree) else tree
