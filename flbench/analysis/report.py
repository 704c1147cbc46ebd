"""Writes the report of a comparison: page, Markdown, JSON, tables and pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench import __version__
from flbench.analysis import frame, page, shown
from flbench.analysis.statistics import Across
from flbench.analysis.tables import TABLES, Analysis
from flbench.core import files
from flbench.core.text import one_line
from flbench.reports import render
from flbench.reports.shown import Chapter, Page

if TYPE_CHECKING:
    import pandas as pd

FRAMES: Final = tuple(name for name in TABLES if name not in ("long", "values"))
"""Names of the tables of the report, and of their CSV files."""
FACTS: Final = ("methods", "places", "repetitions", "vary", "metric", "baseline")
RUNS: Final = ("place", "method", "repetition", "path", "config_hash", "weights_digest")
FOLDERS: Final = ("tables", "pictures")
NOT_IN_LATEX: Final = ("classes", "clients")
"""Tables with a row for each class or client and a column for each method: a page has no room."""


@dataclass(frozen=True)
class Extra:
    """What a report has besides a comparison, such as the search of a study.

    Attributes:
        heading: Title of the report.
        answer: Sentences in place of those of the comparison, which its first chapter has.
        warnings: Warnings before those of the comparison.
        chapters: Chapters before those of the comparison.
        tree: Further entries of report.json.
        frames: Further tables/NAME.csv by name.
    """

    heading: str
    answer: Sequence[str] = ()
    warnings: Sequence[str] = ()
    chapters: Sequence[Chapter] = ()
    tree: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[str, "pd.DataFrame"] = field(default_factory=dict)


def write(folder: Path, analysis: Analysis | None, extra: Extra | None = None) -> None:
    """Write the report.

    It consists of report.html, report.md, report.json, tables/NAME.csv and .tex, and
    pictures/NAME.svg. The same runs give the same bytes. Each file is written atomically.

    Args:
        folder: Folder of the report; it is made if it does not exist.
        analysis: The tables; None while there is no comparison.
        extra: What the report has besides them.

    Raises:
        UserError: One of its folders is a link.
        OSError: A file cannot be written.
    """
    for name in FOLDERS:
        files.check_no_link(folder / name)
    whole = _page(analysis, extra)
    texts = {
        "report.html": whole.html(),
        # The folders have the keys and hashes of the runs too.
        "report.md": render.page(
            replace(whole, chapters=[one for one in whole.chapters if one.title != page.HOW])
        ),
        "report.json": json_of(analysis, extra),
    }
    if analysis is not None:
        texts |= {f"tables/{name}.csv": csv_of(analysis, name) for name in written(analysis)}
        texts |= {f"tables/{name}.tex": source for name, source in latex_of(analysis).items()}
    for name, table in extra.frames.items() if extra else ():
        texts[f"tables/{name}.csv"] = frame.csv_of(table)
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        files.write(folder / name, content.encode())
    for chapter in whole.chapters:
        for one in chapter.pictures():
            files.write(folder / "pictures" / f"{one.name}.svg", one.file)


def _page(analysis: Analysis | None, extra: Extra | None) -> Page:
    """Return the page of a comparison with what the report has besides it."""
    whole = Page("", []) if analysis is None else page.page_of(analysis)
    if extra is None:
        return whole
    first = [replace(one, parts=[*whole.answer, whole.about, *one.parts]) for one in whole.chapters]
    return Page(
        one_line(extra.heading),
        [*extra.chapters, *first[:1], *whole.chapters[1:]],
        extra.answer,
        [*extra.warnings, *whole.warnings],
    )


def latex_of(analysis: Analysis) -> dict[str, str]:
    """Return tables as LaTeX, by name, but those of `NOT_IN_LATEX` and those without rows."""
    comparison = analysis.comparison
    comments = "".join(f"% {one_line(sentence)}\n" for sentence in comparison.warnings)
    warning = "" if comparison.apart is None else f"Not comparable: {comparison.apart}."
    found = {}
    for name, table in shown.TABLES.items():
        if name in NOT_IN_LATEX:
            continue
        places = comparison.places[:1] if name == "ranks" else comparison.places
        tables = [one for place in places for one in table(analysis, place)]
        parts = [render.latex(one, warning) for one in tables if one.rows]
        if parts:
            found[name] = f"{render.PACKAGES}{comments}{''.join(parts)}"
    return found


def written(analysis: Analysis) -> list[str]:
    """Return the names of the CSV files: all tables, but `new_clients` only if there are any."""
    return [name for name in FRAMES if name != "new_clients" or len(analysis.new_clients)]


def csv_of(analysis: Analysis, name: str) -> str:
    """Return a table as CSV; NaN is an empty cell, and tuples are joined by semicolons.

    The tables of runs that are not comparable have a column `warning`.

    Args:
        analysis: The tables.
        name: One of FRAMES.
    """
    table: pd.DataFrame = getattr(analysis, name)
    if analysis.comparison.apart is not None:
        table = table.assign(warning=f"not comparable: {analysis.comparison.apart}")
    return frame.csv_of(table.astype(dict.fromkeys(table.select_dtypes("bool"), int)))


def json_of(analysis: Analysis | None, extra: Extra | None = None) -> str:
    """Return the report as JSON; see `tree_of`."""
    tree = {} if analysis is None else tree_of(analysis)
    if extra is not None:
        tree = {"flbench": __version__, **tree, **render.finite(extra.tree)}
        tree["answer"] = [*dict.fromkeys([*extra.answer, *tree.get("answer", ())])]
        tree["warnings"] = [*extra.warnings, *tree.get("warnings", ())]
    return json.dumps(tree, indent=1) + "\n"


def tree_of(analysis: Analysis) -> dict[str, Any]:
    """Return the report as values of JSON.

    Returns:
        A dict with the keys `flbench` (version), `answer`, `warnings`, `methods`, `places`,
        `repetitions`, `vary`, `metric`, `baseline`, `at` (see `fl.report`),
        `populations` (for what the claims of each place hold) and `kinds` (of partition, by place);
        for each of FRAMES a list of rows as objects; `across`, null for a single place; and `runs`,
        the folders. NaN is null.
    """
    comparison = analysis.comparison
    tree = {
        "flbench": __version__,
        "answer": analysis.answer,
        **{name: getattr(comparison, name) for name in FACTS},
        "at": comparison.work,
        "populations": {
            place: comparison.sampling_at(place).population for place in comparison.places
        },
        "kinds": comparison.kinds,
        "warnings": comparison.warnings,
        **{name: shown.records(getattr(analysis, name)) for name in FRAMES},
        "across": None if analysis.across is None else _across_tree(analysis, analysis.across),
        "runs": shown.records(comparison.runs[[*RUNS]]),
    }
    found: dict[str, Any] = render.finite(tree)
    return found


def _across_tree(analysis: Analysis, across: Across) -> dict[str, Any]:
    """Return the comparison over places as values of JSON; without tests if there is no claim."""
    tests = {
        "friedman": across.friedman,
        "nemenyi": across.nemenyi.to_dict(),
        "critical": across.critical,
    }
    return {
        "ranks": across.ranks.to_dict(),
        "places": across.places,
        **(tests if shown.has_rank_claims(analysis) else dict.fromkeys(tests)),
    }
