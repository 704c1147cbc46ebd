"""Writes the results of a study: trials.csv, results.json, study.md and report.html.

The page report.html needs no server and no network. All files can be written again at any time,
also while the study is unfinished.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flbench import __version__
from flbench.analysis import page as comparison_page
from flbench.analysis.figures import drawn
from flbench.analysis.report import finite, tree_of
from flbench.analysis.shown import TABLES
from flbench.core import files
from flbench.core.text import csv_text
from flbench.reports import picture, render
from flbench.reports.page import Chapter, Drawn, Page, Part
from flbench.tuning import study_figures, tables
from flbench.tuning.failures import find_failures
from flbench.tuning.report import StudyReport

STATE = ("method", "index", "state", "reason", "round", "rounds", "score", "loss", "winner")
SECONDS = ("train", "evaluate", "total")
LAST = ("attempts", "node", "started", "ended")
PICTURES = ("leaders",)
"""Pictures of the comparison that the page has; `flbench report` draws the others."""


def write(report: StudyReport) -> None:
    """Write the results of a study into its folder. Each file is written atomically.

    Raises:
        UserError: The folder `pictures` is a link.
        OSError: A file cannot be written.
    """
    path, whole = report.study.path, page(report)
    files.check_no_link(path / "pictures")
    written = {
        "trials.csv": trials_csv(report),
        "results.json": as_json(report),
        "study.md": render.page(whole),
        "report.html": whole.html(),
    }
    for name, content in written.items():
        files.write(path / name, content.encode())
    _save_pictures(report, path / "pictures")


def trials_csv(report: StudyReport) -> str:
    """Return trials.csv: a line for each trial of the search.

    The column of a parameter is named by its configuration key. A parameter that a trial lacks is
    an empty cell.
    """
    study = report.study
    paths = list(dict.fromkeys(path for trial in study.trials for path in trial.params))
    winners = [study.winner(method) for method in study.methods]
    columns = (*STATE, *paths, *(f"{what}_seconds" for what in SECONDS), *LAST)
    rows = []
    for trial in study.trials:
        seconds = trial.seconds or {}
        line = {
            **{name: getattr(trial, name) for name in STATE[:-1]},
            "winner": int(trial in winners),
            **{path: json.dumps(value).strip('"') for path, value in trial.params.items()},
            **{f"{what}_seconds": seconds.get(what) for what in SECONDS},
            **{name: getattr(trial, name) for name in LAST},
        }
        rows.append([line.get(column) for column in columns])
    return csv_text(columns, rows)


def as_json(report: StudyReport) -> str:
    """Return results.json: the whole report. NaN and infinity are written as null.

    Returns:
        The text of an object with the keys `flbench` (version), `study` (content of study.json
        without methods and command), `notes`, `methods`, `answer`, `comparison` of the final
        trainings (see `flbench.analysis.report.tree_of`; null if there are none) and `failures`.
        The entry of a method has its `space` and `defaults`, the `winner` of the search, warnings
        about values `at_the_edge` of their range, and the `importance` of its parameters.
    """
    tree = {
        "flbench": __version__,
        "study": {
            key: value
            for key, value in asdict(report.study.header).items()
            if key not in ("methods", "command")
        },
        "notes": report.notes,
        "methods": {method: _winner(report, method) for method in report.study.methods},
        "answer": report.answer,
        "comparison": None if report.analysis is None else tree_of(report.analysis),
        "failures": find_failures(report),
    }
    return json.dumps(finite(tree), indent=1) + "\n"


def page(report: StudyReport) -> Page:
    """Return the page of a study: its search, and the comparison of the final trainings."""
    study, place = report.study, report.study.header.dataset
    lines = {method: study.trials_of(method) for method in study.methods}
    progress = Drawn(
        "progress",
        "Best score so far",
        f"Validation {report.metric} of finished trials.",
        study_figures.progress(lines, report.metric),
    )
    failures, analysis = find_failures(report), report.analysis
    finals: list[Chapter] = []
    if analysis is not None:
        tables_of = [one for table in TABLES.values() for one in table(analysis, place)]
        parts: list[Part] = [*drawn(analysis, place, PICTURES), *tables_of]
        finals = [Chapter("Final trainings", parts), comparison_page.how(analysis)]
    failed = "What failed, could not be scored, or is missing"
    return Page(
        report.heading,
        [
            Chapter("Search", [tables.trials(report), progress]),
            *(
                Chapter(name, [*_parts(report, name, f"{k}-")])
                for k, name in enumerate(study.methods, 1)
            ),
            *([Chapter(failed, [failures])] if failures else []),
            *finals,
        ],
        report.answer,
        report.notes,
        report.facts,
        report.budget,
    )


def _parts(report: StudyReport, method: str, prefix: str) -> Iterator[Part]:
    """Yield the best parameters of a method, and the pictures of its search."""
    parameters = tables.parameters(report, method)
    yield parameters or "No trial has finished with a score yet."
    yield from (replace(one, name=f"{prefix}{one.name}") for one in _pictures(report, method))
    if not report.importances[method].shares:
        yield f"Importance of the parameters: {report.importances[method].why}"


def _pictures(report: StudyReport, method: str) -> Iterator[Drawn]:
    """Yield the pictures of the search of a method; none without a score."""
    axes, trials = report.axes[method], report.study.trials_of(method)
    if not drawable(report, method):
        return
    yield Drawn(
        "parallel",
        "All trials",
        f"Each line is a trial, coloured by its validation {report.metric}. The best trial is bold;"
        " trials that did not finish are dashed.",
        study_figures.parallel(axes, trials, report.metric),
        is_map=True,
    )
    found = report.importances[method]
    if found.shares:
        about = (
            "fANOVA over the finished trials: share of the score's variance that each parameter"
            " explains alone, normalized to a sum of 1."
        )
        yield Drawn(
            "importance",
            "Importance of the parameters",
            f"{about} {found.why}".strip(),
            study_figures.shares(found.shares),
        )
    yield Drawn(
        "scatter",
        "Score over each parameter",
        "The star is the best trial; trials that did not finish are hollow.",
        study_figures.scatter(axes, trials, report.metric),
    )


def drawable(report: StudyReport, method: str) -> bool:
    """Whether a method has a trial with a score, and a parameter that is searched."""
    scored = any(trial.score is not None for trial in report.study.trials_of(method))
    return scored and any(not axis.fixed for axis in report.axes[method])


def _save_pictures(report: StudyReport, folder: Path) -> None:
    """Write `METHOD-parallel.png` for each method that has a trial with a score."""
    folder.mkdir(exist_ok=True)
    for method in report.study.methods:
        if drawable(report, method):
            trials = report.study.trials_of(method)
            figure = study_figures.parallel(report.axes[method], trials, report.metric)
            picture.save(figure, folder / f"{method}-parallel.png")


def _winner(report: StudyReport, method: str) -> dict[str, Any]:
    """Return the entries of results.json on the best trial of a method."""
    won, entry = report.study.winner(method), report.study.header.methods[method]
    found = report.importances[method]
    warnings = (
        {}
        if won is None
        else {
            axis.path: warning
            for axis in report.axes[method]
            if (warning := tables.edge(axis, won, method))
        }
    )
    return {
        "space": entry.space,
        "defaults": entry.defaults,
        "winner": None
        if won is None
        else {"index": won.index, "score": won.score, "params": won.params},
        "at_the_edge": warnings,
        "importance": found.shares,
        "importance_note": found.why,
    }
