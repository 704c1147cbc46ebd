"""The report of a comparison as Markdown, JSON and CSV."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np
import pandas as pd

from flbench import __version__
from flbench.analysis import blocks, new_client_blocks
from flbench.analysis.arrangement import Arrangement
from flbench.analysis.blocks import has_rank_claims, records
from flbench.analysis.sampling import VARIED
from flbench.analysis.statistics import Across
from flbench.analysis.tables import Analysis
from flbench.core.text import csv_text, in_markdown, one_line
from flbench.reports.tables import markdown

TABLES: Final = (
    *("leaderboard", "scores", "pairs", "targets", "classes"),
    *("clients", "client_scores", "client_spread", "new_clients", "curves"),
)
"""Names of the tables of an Analysis that are DataFrames, and of their CSV files."""


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
        "across": None if analysis.across is None else _across_tree(analysis, analysis.across),
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
        parts += [markdown(block) for block in blocks.of_place(analysis, place)]
        if (joining := new_client_blocks.of_place(analysis, place)) is not None:
            parts.append(markdown(joining))
    if analysis.across is not None:
        parts.append(markdown(blocks.ranks_block(analysis)))
    parts.append(in_markdown(about(comparison)))
    return "\n\n".join(part.strip() for part in parts) + "\n"


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


def _across_tree(analysis: Analysis, across: Across) -> dict[str, Any]:
    """Return the comparison over places as values of JSON; without tests if there is no claim."""
    tests = {
        "friedman": across.friedman,
        "nemenyi": across.nemenyi.to_dict(),
        "critical": across.critical,
        "groups": across.groups,
    }
    return {
        "ranks": across.ranks.to_dict(),
        "places": across.places,
        **(tests if has_rank_claims(analysis) else dict.fromkeys(tests)),
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
