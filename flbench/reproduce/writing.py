"""Writes a report as Markdown, CSV and JSON."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from flbench import __version__
from flbench.core import files
from flbench.core.text import csv_text, in_markdown, printable
from flbench.reports.tables import grid
from flbench.reproduce.cells import named
from flbench.reproduce.configurations import Change
from flbench.reproduce.measure import MeasuredCell
from flbench.reproduce.report import CLAIM_HEADER, PaperReport
from flbench.reproduce.verdicts import Verdict

COLUMNS: Final = (
    *("paper", "doi", "table", "row", "column", "dataset", "substitute", "algorithm", "unit"),
    *("published", "measured", "std", "seeds", "difference", "scale", "why"),
)


def write(report: PaperReport, folder: Path) -> list[Path]:
    """Write a report as Markdown, CSV and JSON.

    Args:
        report: The report.
        folder: Folder for the files; it is created if necessary.

    Returns:
        Paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".md": markdown(report), ".csv": table(report), ".json": as_json(report)}
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{report.stem}{ending}")
        files.write(paths[-1], text.encode())
    return paths


def markdown(report: PaperReport) -> str:
    """Return the report as Markdown."""
    paper = report.plan.paper
    parts = [f"# {report.heading}: published and measured numbers"]
    source = f" ({paper.source})" if paper.source else ""
    parts.append(
        f"{paper.authors}: *{paper.title}*. {paper.venue}, doi"
        f" [{paper.doi}](https://doi.org/{paper.doi}){source}."
    )
    parts += [f"**{in_markdown(note)}**" for note in report.notes]
    number = None
    for block in report.blocks:
        of = block.title.split(",")[0]
        if of != number:
            number = of
            captions = {named(key): paper.tables[key].caption for key in report.plan.tables}
            parts.append(f"## {of}{report.mark}\n\n{captions[of]}.")
        parts.append(f"### {block.title}\n\n{block.about}\n\n{grid(block.header, block.rows)}")
    if not report.blocks:
        parts.append("No cell is measured yet.")
    parts.append(f"## Claims of the text{report.mark}\n\n" + grid(CLAIM_HEADER, report.claims.rows))
    if report.absent:
        rows = [(item.what, item.why, str(item.cells)) for item in report.absent]
        header = ("what", "why", "cells without")
        parts.append(f"## What could not be measured here\n\n{grid(header, rows)}")
    for title, items in (
        ("Footnotes", report.shown_footnotes),
        ("Contradictions in the paper", paper.contradictions),
        ("What the paper does not specify, and the choices here", paper.choices),
    ):
        if items:
            parts.append(f"## {title}\n\n" + "\n".join(f"- {item}" for item in items))
    folders = {
        line.planned.jobs[seed].title: path
        for line in report.lines
        for seed, path in line.folders.items()
    }
    if folders:
        items = [
            f"- {in_markdown(title)}: {in_markdown(str(_inside(path, report)))}"
            for title, path in folders.items()
        ]
        parts.append("## Runs\n\n" + "\n".join(items))
    parts.append(f"flbench {__version__}.")
    return printable("\n\n".join(parts)) + "\n"


def table(report: PaperReport) -> str:
    """Return the report as CSV: a line for each cell, measured or not."""
    entries = [
        _entry(report, line) | {"seeds": " ".join(map(str, line.values))} for line in report.lines
    ]
    return csv_text(COLUMNS, [[entry[column] for column in COLUMNS] for entry in entries])


def as_json(report: PaperReport) -> str:
    """Return the report as JSON.

    Returns:
        The text of an object with the keys `flbench` (version), `paper`, `scale`, `seeds`, `tables`
        (captions by number), `substitutes` (by the paper's name of a data set), `scaled` and
        `changed` (changes of the small scale and of the user), `notes`, `cells`, `claims`, `absent`
        (what could not be measured), `footnotes`, `contradictions` and `choices`.
    """
    plan, paper = report.plan, report.plan.paper
    tree: dict[str, Any] = {
        "flbench": __version__,
        "paper": {
            key: getattr(paper, key)
            for key in ("name", "title", "authors", "venue", "doi", "source")
        },
        "scale": plan.request.scale,
        "seeds": list(plan.seeds),
        "tables": {key: paper.tables[key].caption for key in plan.tables},
        "substitutes": dict(plan.substitutes),
        "scaled": _triples(report.scaled),
        "changed": _triples(report.changed),
        "notes": list(report.notes),
        "cells": [_entry(report, line) for line in report.lines],
        "claims": [_claim(verdict) for verdict in report.verdicts],
        "absent": [vars(item) for item in report.absent],
        "footnotes": report.footnotes,
        "contradictions": list(paper.contradictions),
        "choices": list(paper.choices),
    }
    return json.dumps(tree, indent=1) + "\n"


def _entry(report: PaperReport, line: MeasuredCell) -> dict[str, Any]:
    """Return the entries of a cell for CSV and JSON."""
    cell, plan = line.planned.cell, report.plan
    return {
        "paper": plan.paper.name,
        "doi": plan.paper.doi,
        "table": cell.table,
        "row": cell.row,
        "column": cell.column,
        "dataset": cell.dataset,
        "substitute": plan.substitutes.get(cell.dataset or ""),
        "algorithm": None if cell.method is None else plan.paper.methods[cell.method].algo,
        "metric": None if cell.metric is None else cell.metric.what,
        "unit": None if cell.metric is None else cell.metric.unit,
        "published": line.published,
        "measured": line.mean,
        "std": line.std,
        "difference": line.difference,
        "scale": plan.request.scale,
        "why": line.why,
        "at_least": {str(seed): value for seed, value in line.at_least.items()},
        "values": {str(seed): value for seed, value in line.values.items()},
        "runs": {str(seed): str(path) for seed, path in line.folders.items()},
    }


def _claim(verdict: Verdict) -> dict[str, Any]:
    """Return the entries of a claim for JSON."""
    claim = verdict.claim
    return {
        "claim": claim.text,
        "table": claim.table,
        "claimed": None if claim.reason is not None else claim.bound,
        "unit": verdict.unit or None,
        "published": verdict.printed,
        "measured": verdict.measured,
        "std": verdict.std,
        "values": {str(seed): value for seed, value in verdict.by_seed.items()},
        "measured_row": claim.measured_row or claim.row,
        "seeds": verdict.seeds,
        "verdict": verdict.outcome,
        "why": verdict.why or None,
        "note": claim.note,
    }


def _triples(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [{"key": key, "paper": before, "here": after} for key, before, after in changes]


def _inside(path: Path, report: PaperReport) -> Path:
    """Return the path of a run's folder, relative to the folder of the report."""
    return path.relative_to(report.plan.request.output.absolute())
