"""`flbench reproduce`: tables of a paper, published numbers beside measured ones."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flbench.api import progress
from flbench.cli import console
from flbench.cli.layers import split_names
from flbench.cli.tables import papers as paper_tables
from flbench.core.errors import UserError
from flbench.reproduce import library, measure, plan, report, request, runs, writing


def reproduce(paper_and_overrides: Sequence[str], *, dry_run: bool, **options: Any) -> None:
    """List the papers, or measure tables of one of them.

    Args:
        paper_and_overrides: At most one name of a paper, and overrides `key=value`.
        dry_run: Whether to list the runs instead of training.
        options: Fields of `flbench.reproduce.request.ReproduceRequest`.

    Raises:
        UserError: An option is wrong, or nothing could be measured.
    """
    paper, overrides = split_names(paper_and_overrides, "paper")
    if options["scale"] not in ("small", "full"):
        raise UserError(f"--scale must be small or full, got {options['scale']}.")
    if paper is None:
        if overrides or any(options[name] for name in ("tables", "dataset", "algos")):
            raise UserError(f"name a paper: {', '.join(library.names())}.")
        paper_tables.print_papers({name: library.load(name) for name in library.names()})
        return
    planned = plan.make(request.ReproduceRequest(paper, overrides=overrides, **options))
    folders = runs.RunFolders(planned.request.output)
    states = {job.title: runs.state_of(job, folders) for job in planned.jobs.values()}
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    console.notes([*planned.notes, f"{len(states)} runs: {counts or 'nothing to do'}."])
    if dry_run:
        paper_tables.print_runs(states)
        absent = report.make(planned, runs.RunResults()).absent
        paper_tables.print_unavailable([item for item in absent if item.why != measure.NOT_YET])
        return
    done = runs.RunResults()
    try:
        runs.carry_out(planned, folders, progress.display, done)
    finally:
        # After Ctrl-C too: the finished runs are reported.
        runs.collect(planned, folders, done)
        paper_report = report.make(planned, done)
        if paper_report.blocks:
            paths = writing.write(paper_report, planned.request.output)
            paper_tables.print_report(paper_report, paths)
    if not paper_report.blocks:
        raise UserError(report.nothing(paper_report))
