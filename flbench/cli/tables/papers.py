"""Tables of `flbench reproduce`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flbench.cli.console import block, line, notes, titled_table
from flbench.reports.tables import Block
from flbench.reports.terminal import open_console
from flbench.reproduce.report import PaperReport, Unavailable
from flbench.reproduce.schema import PaperFacts


def print_papers(papers: Mapping[str, PaperFacts]) -> None:
    """Print the papers whose tables can be measured, by their names."""
    for name, paper in papers.items():
        line(f"{name}: {paper.title}. {paper.venue}, doi {paper.doi}")
        for number, table in paper.tables.items():
            line(f"  --table {number:<16} {table.caption}")
    line("\nFor one of them: flbench reproduce NAME --dry-run")


def print_runs(states: Mapping[str, str]) -> None:
    """Print the runs that a table needs, and the state of each."""
    table = titled_table(f"{len(states)} runs")
    table.add_column("run")
    table.add_column("state")
    for title, state in states.items():
        table.add_row(title, state)
    open_console().print(table)


def print_unavailable(items: Sequence[Unavailable]) -> None:
    """Print what could not be measured, and why."""
    if items:
        rows = tuple((item.what, item.why, str(item.cells)) for item in items)
        header = ("what", "why", "cells\nwithout")
        block(Block("What could not be measured here", header, rows, texts=(0, 1)))


def print_report(report: PaperReport, paths: Sequence[Path]) -> None:
    """Print published beside measured numbers, the paper's claims, and what is missing.

    Args:
        report: Results of a request.
        paths: Files of the written report.
    """
    for table in report.blocks:
        block(table)
    claims = list(zip(report.claims.rows, report.verdicts, strict=True))
    measured = [row for row, verdict in claims if verdict.measured is not None]
    if measured:
        block(replace(report.claims, rows=tuple(measured)))
    for row, verdict in claims:
        if verdict.measured is None and verdict.asked:
            line(f"{row[0]}: {row[-1]}")
    if others := sum(not verdict.asked for _, verdict in claims):
        line(f"{others} more claims are about tables that were not requested.")
    line("")
    print_unavailable(report.absent)
    for footnote in report.shown_footnotes:
        line(footnote)
    notes(report.notes)
    for path in paths:
        line(str(path))
