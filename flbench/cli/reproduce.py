"""`flbench reproduce`: tables of a paper, published numbers beside measured ones."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flbench.api import caller
from flbench.cli import console, words
from flbench.cli.layers import CommandLine
from flbench.cli.tables import papers as paper_tables
from flbench.core.errors import UserError
from flbench.reproduce import library, measure, plan, report, request, runs, writing
from flbench.reproduce.schema import PaperFacts


def reproduce(
    items: Sequence[str],
    *,
    aliases: Mapping[str, str],
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """List the papers, or measure tables of one of them.

    Args:
        items: At most one name of a paper, and overrides `key=value`.
        aliases: Texts of the short forms that the user gave, by the name of the option.
        dry_run: Whether to list the runs instead of training.
        as_json: Whether to print JSON: without a paper, `papers`; with `dry_run`, `runs` with their
            states and `unavailable`; otherwise the content of the report's JSON file, and `files`.
        options: Fields of `flbench.reproduce.request.ReproduceRequest`.

    Raises:
        UserError: An option is wrong, or nothing could be measured.
    """
    paper, overrides = words.one_name(items, "paper")
    if options["scale"] not in ("small", "full"):
        raise UserError(f"--scale must be small or full, got {options['scale']}.")
    if paper is None:
        if overrides or aliases or any(options[name] for name in ("tables", "dataset", "algos")):
            raise UserError(f"name a paper: {', '.join(library.names())}.")
        papers = {name: library.load(name) for name in library.names()}
        console.json(_papers(papers)) if as_json else paper_tables.print_papers(papers)
        return
    given = CommandLine(overrides, aliases).layers()[0]
    planned = plan.make(request.ReproduceRequest(paper, overrides=given, **options))
    folders = runs.RunFolders(planned.request.output)
    states = {job.title: runs.state_of(job, folders) for job in planned.jobs.values()}
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    console.notes([*planned.notes, f"{len(states)} runs: {counts or 'nothing to do'}."])
    if dry_run:
        absent = report.make(planned, runs.RunResults()).absent
        missing = [item for item in absent if item.why != measure.NOT_YET]
        if as_json:
            listed = [{"run": title, "state": state} for title, state in states.items()]
            console.json({"runs": listed, "unavailable": [vars(item) for item in missing]})
        else:
            paper_tables.print_runs(states)
            paper_tables.print_unavailable(missing)
        return
    done = runs.RunResults()
    try:
        runs.carry_out(planned, folders, caller.display, done)
    finally:
        # After Ctrl-C too: the finished runs are reported.
        runs.collect(planned, folders, done)
        paper_report = report.make(planned, done)
        if paper_report.blocks:
            paths = writing.write(paper_report, planned.request.output)
            if as_json:
                content = json.loads(writing.as_json(paper_report))
                console.json(content | {"files": [str(path) for path in paths]})
            else:
                paper_tables.print_report(paper_report, paths)
    if not paper_report.blocks:
        raise UserError(report.nothing(paper_report))


def _papers(papers: Mapping[str, PaperFacts]) -> list[dict[str, Any]]:
    """Return what `--json` prints of the papers whose tables can be measured."""
    return [
        {
            "name": name,
            "title": paper.title,
            "venue": paper.venue,
            "doi": paper.doi,
            "tables": {number: table.caption for number, table in paper.tables.items()},
        }
        for name, paper in papers.items()
    ]
