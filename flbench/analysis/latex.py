"""The tables of a comparison for LaTeX."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from flbench.analysis import blocks, new_client_blocks
from flbench.analysis.arrangement import PRICES
from flbench.analysis.blocks import (
    WHOLE,
    complete_scores,
    heading_of,
    number,
    records,
    shown_columns,
    value_text,
)
from flbench.analysis.sampling import VARIED
from flbench.analysis.tables import CLASS_SCORES, Analysis
from flbench.core.text import in_latex, one_line
from flbench.reports.tables import Block

NAMES: Final = ("leaderboard", "scores", "pairs", "targets", "classes", "clients", "new_clients")
"""Names of the tables, and of their files."""
PACKAGES: Final = "\\usepackage{booktabs,amsmath,graphicx}"
"""What a document needs for the tables."""
LONGEST: Final = 40  # rows of a table; more are several tables
MOST_METHODS: Final = 5  # methods beside each other; more have tables of their own
MOST_MEASURES: Final = 6  # measures of clients beside each other
DIGITS: Final = 3  # decimals of means with half the width of their interval
MINUS: Final = "\N{MINUS SIGN}"
SIGN: Final = re.compile(r"(?<![\w.])-(?=\d)")
"""The sign of a negative number, which LaTeX prints as a hyphen outside of formulas."""


def all_of(analysis: Analysis) -> dict[str, str]:
    """Return all tables as LaTeX, by name; a table without rows is left out."""
    comparison, warnings = analysis.comparison, warnings_of(analysis)
    found = {
        "leaderboard": [_leaderboard(analysis, place) for place in comparison.places],
        **{
            name: [_table(block, _apart(analysis)) for block in _blocks(analysis, name)]
            for name in NAMES[1:]
        },
    }
    return {
        name: f"% {PACKAGES}\n{warnings}{''.join(parts)}" for name, parts in found.items() if parts
    }


def warnings_of(analysis: Analysis) -> str:
    """Return the warnings of a comparison as comments of LaTeX."""
    return "".join(f"% {one_line(sentence)}\n" for sentence in analysis.comparison.warnings)


def document(
    analysis: Analysis, tables: Mapping[str, str], pictures: Iterable[tuple[str, str]]
) -> str:
    """Return a document that shows all tables and pictures of a report.

    Args:
        analysis: The comparison.
        tables: The tables by name; see `all_of`. The document reads them from the folder `tables`.
        pictures: Name and explanation of each picture in the folder `pictures`.
    """
    parts = [
        "% pdflatex report.tex makes a document of all tables and pictures. A paper can \\input",
        "% single tables. Names in other scripts need lualatex or xelatex, and a font that has",
        "% them: \\setmainfont{NAME}.",
        *("\\documentclass{article}", PACKAGES, "\\usepackage{iftex}"),
        "\\ifPDFTeX\\usepackage[T1]{fontenc}\\else\\usepackage{fontspec}\\fi",
        "\\ifPDFTeX\\IfFileExists{lmodern.sty}{\\usepackage{lmodern}}{}\\fi",
        # A picture is made smaller where it is higher than the page.
        "\\newsavebox{\\picturebox}",
        "\\newcommand{\\picturefile}[1]{\\sbox{\\picturebox}{\\includegraphics{#1}}%",
        "\\resizebox{!}{\\ifdim\\ht\\picturebox>0.8\\textheight 0.8\\textheight%",
        "\\else\\ht\\picturebox\\fi}{\\usebox{\\picturebox}}}",
        *("\\usepackage[a4paper,margin=2cm]{geometry}", "\\begin{document}"),
    ]
    for name in tables:
        parts += [f"\\input{{tables/{name}.tex}}", "\\clearpage"]
    for name, about in pictures:
        parts += [
            *("\\begin{figure}[p]", "\\centering"),
            f"\\picturefile{{pictures/{name}.pdf}}",
            f"\\caption{{{in_latex(about)}}}",
            "\\end{figure}",
        ]
    return warnings_of(analysis) + "\n".join([*parts, "\\end{document}"]) + "\n"


def _blocks(analysis: Analysis, name: str) -> Iterator[Block]:
    """Yield the tables of text of a name but `leaderboard`, of all places."""
    for place in analysis.comparison.places:
        if name == "scores":
            yield blocks.scores_block(analysis, place)
        elif name == "pairs":
            yield from blocks.pairs_blocks(analysis, place)
        elif name == "targets":
            yield from blocks.targets_blocks(analysis, place)
        elif name == "classes":
            for score in CLASS_SCORES:
                yield from _divided(blocks.classes_block(analysis, place, score, DIGITS), fixed=5)
        elif name == "new_clients":
            found = new_client_blocks.of_place(analysis, place, DIGITS)
            if found is not None:
                yield from _divided(found, fixed=1)
        elif name == "clients":
            spread = blocks.client_spread_block(analysis, place, DIGITS)
            yield from _divided(spread, fixed=1, most=MOST_MEASURES)
            yield blocks.client_deciles_block(analysis, place, DIGITS)
            if (clients := blocks.client_scores_block(analysis, place, DIGITS)) is not None:
                yield from _divided(clients, fixed=3)


def _divided(block: Block, fixed: int, most: int = MOST_METHODS) -> Iterator[Block]:
    """Yield a table of many columns as several ones, each with the same first columns.

    Args:
        block: The table.
        fixed: Number of columns that each of the tables has.
        most: Largest number of further columns.
    """
    count = len(block.header) - fixed
    tables = -(-count // most)
    for part in range(tables):  # of about equal width
        begin, end = count * part // tables, count * (part + 1) // tables
        kept = [*range(fixed), *range(fixed + begin, fixed + end)]
        yield replace(
            block,
            header=tuple(block.header[k] for k in kept),
            rows=tuple(tuple(row[k] for k in kept) for row in block.rows),
        )


def _apart(analysis: Analysis) -> str:
    """Return the warning of runs that are not comparable; "" for others."""
    reason = analysis.comparison.apart
    return "" if reason is None else f"Not comparable: {reason}."


def _table(block: Block, warning: str) -> str:
    """Return a table of text as LaTeX."""
    caption = " ".join(filter(None, [f"{block.title}.", block.about, warning]))
    header = " & ".join(map(in_latex, block.header))
    rows = [" & ".join(map(_cell, row)) for row in block.rows]
    columns = "".join("l" if k in block.texts else "r" for k in range(len(block.header)))
    return _placed(in_latex(caption), columns, header, rows)


def _cell(text: str) -> str:
    r"""Return a cell as LaTeX.

    >>> _cell("-0.0123 [-0.1000, -0.0020]"), _cell("0.5 ± 0.1"), _cell("fedavg - local")
    ('$-$0.0123 {[}$-$0.1000, $-$0.0020]', '0.5 $\\pm$ 0.1', 'fedavg - local')
    """
    return in_latex(SIGN.sub(MINUS, text)).replace(MINUS, "$-$").replace("±", "$\\pm$")


def _placed(caption: str, columns: str, header: str, rows: Sequence[str]) -> str:
    """Return a table with its caption, no wider than the column; a long one as several tables.

    Args:
        caption: The caption.
        columns: Alignment of the columns.
        header: Cells of the header.
        rows: Cells of the rows.
    """
    count = -(-len(rows) // LONGEST)
    parts = []
    for part in range(count):
        lines = rows[LONGEST * part : LONGEST * (part + 1)]
        end = f" ({part + 1} of {count})" if count > 1 else ""
        parts += [
            *("\\begin{table}", "\\centering", "\\setlength{\\belowcaptionskip}{6pt}"),
            f"\\caption{{{caption}{end}}}",
            # A table is made smaller where it is wider than the column.
            "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
            f"\\begin{{tabular}}{{{columns}}}",
            *("\\toprule", f"{header} \\\\", "\\midrule"),
            *(f"{line} \\\\" for line in lines),
            *("\\bottomrule", "\\end{tabular}}", "\\end{table}"),
            # LaTeX holds few tables at once until there are pages for them.
            *(["\\clearpage"] if count > 1 else []),
        ]
    return "\n".join(parts) + "\n"


def _leaderboard(analysis: Analysis, place: str) -> str:
    """Return the leaderboard of a place.

    The best mean is bold. Means of methods that a test does not tell apart from the best one are
    underlined; with a reference, those that differ significantly from it have a star. With fewer
    than three repetitions there is no test.
    """
    comparison = analysis.comparison
    rows = records(analysis.leaderboard, place)
    metric, *others = shown_columns(analysis, place)
    known = complete_scores(analysis, place)
    counts = sorted({row["n"] for row in rows})
    is_beside_one = comparison.reference is not None
    first = next((row["method"] for row in rows if row["rank"] == 1), None)
    like = set() if is_beside_one or first is None else _like_best(analysis, place, first)
    apart = _unlike_reference(analysis, place) if is_beside_one else set()
    lines = []
    for row in rows:
        value = _mean(metric, known.get((row["method"], metric)))
        if row["rank"] == 1:
            value = f"\\textbf{{{value}}}"
        elif row["method"] in like:
            value = f"\\underline{{{value}}}"
        if row["method"] in apart:
            value += "$^{*}$"
        cells = [
            *(in_latex(row["method"]), value),
            *([str(row["n"])] if len(counts) > 1 else []),
            *(_mean(name, known.get((row["method"], name))) for name in others),
        ]
        lines.append(" & ".join(cells))
    header = ["method", in_latex(heading_of(metric))]
    header += ["runs"] if len(counts) > 1 else []
    header += [in_latex(heading_of(name)).replace("10 \\%", "10\\,\\%") for name in others]
    has_width = any(not np.isnan(row["low"]) for row in known.values())
    width = " and half the width of the 95\\,\\% interval" if has_width else ""
    runs = " to ".join(map(str, counts if len(counts) < 2 else (counts[0], counts[-1])))
    about = [f"{in_latex(place)}: mean over {runs} repetitions{width}"]
    population = comparison.sampling_at(place).population
    about[0] += f", {population};" if population else ";"
    about[0] += f" {VARIED[comparison.sampling_at(place).vary]}."
    bold = (
        "Bold: largest mean"
        if counts[0] == counts[-1]
        else ("Bold: largest mean of the methods that have all repetitions")
    )
    if like:
        bold += "; underlined: no significant difference from it"
    if apart:
        bold += f"; *: differs significantly from {in_latex(comparison.baseline)}"
    about.append(f"{bold}.")
    about += map(in_latex, comparison.warnings)
    return _placed(" ".join(about), f"l{'r' * (len(header) - 1)}", " & ".join(header), lines)


def _like_best(analysis: Analysis, place: str, best: str) -> set[str]:
    """Return the methods that a test does not tell apart from the best one of a place."""
    return {
        row["second"] if row["first"] == best else row["first"]
        for row in records(analysis.ranking_pairs, place)
        if best in (row["first"], row["second"]) and row["verdict"] == "no significant difference"
    }


def _unlike_reference(analysis: Analysis, place: str) -> set[str]:
    """Return the methods that differ significantly from the reference in a place."""
    return {
        row["first"]
        for row in records(analysis.ranking_pairs, place)
        if row["verdict"] in ("better", "worse")
    }


def _mean(metric: str, row: Mapping[str, Any] | None) -> str:
    """Return the mean of a score with half the width of its interval; costs without it."""
    if row is None:
        return "-"
    if metric in PRICES:
        return in_latex(value_text(metric, row["mean"]))
    value = SIGN.sub("$-$", number(row["mean"], 3))
    if np.isnan(row["low"]):
        return value
    if (row["low"], row["high"]) in WHOLE:
        return f"{value} [0, 1]"
    return f"{value} $\\pm$ {max(row['high'] - row['mean'], row['mean'] - row['low']):.3f}"
