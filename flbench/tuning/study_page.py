"""Writes the results of a study: trials.csv, results.json, study.md and report.html.

The page report.html needs no server and no network. All files can be written again at any time,
also while the study is unfinished.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flbench import __version__
from flbench.analysis import blocks, text
from flbench.analysis import page as comparison_page
from flbench.analysis.page import Drawings, Drawn, Shared, drawn, placed
from flbench.core import files
from flbench.core.text import csv_text, in_markdown
from flbench.reports import figures
from flbench.reports import tables as forms
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
    path = report.study.path
    files.check_no_link(path / "pictures")
    written = {
        "trials.csv": trials_csv(report),
        "results.json": as_json(report),
        "study.md": markdown(report),
        "report.html": page(report),
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
        trainings (see `flbench.analysis.text.tree_of`; null if there are none) and `failures`. The
        entry of a method has its `space` and `defaults`, the `winner` of the search, warnings about
        values `at_the_edge` of their range, and the `importance` of its parameters.
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
        "comparison": None if report.analysis is None else text.tree_of(report.analysis),
        "failures": find_failures(report),
    }
    return json.dumps(text.finite(tree), indent=1) + "\n"


def markdown(report: StudyReport) -> str:
    """Return study.md: the whole report without its figures."""
    parts = [f"# {in_markdown(report.heading)}"]
    parts += map(in_markdown, report.answer)
    parts.append("\n".join(f"- {key}: {in_markdown(fact)}" for key, fact in report.facts.items()))
    parts += [f"**{in_markdown(note)}**" for note in report.notes]
    parts.append(report.budget)
    if report.analysis is not None:
        tests = blocks.of_place(report.analysis, report.study.header.dataset)
        parts += [*map(forms.markdown, tests), in_markdown(text.about(report.analysis.comparison))]
    parameters = [tables.parameters(report, method) for method in report.study.methods]
    if any(parameters):
        parts.append("## Best hyper-parameters")
    parts += [forms.markdown(block, 3) for block in parameters if block is not None]
    parts.append(forms.markdown(tables.trials(report)))
    if failures := find_failures(report):
        parts.append("## What failed, could not be scored, or is missing")
        parts.append("\n".join(f"- {in_markdown(line)}" for line in failures))
    parts.append(f"flbench {__version__}.")
    return "\n\n".join(parts) + "\n"


def page(report: StudyReport) -> str:
    """Return report.html: the page of a comparison of the final trainings, and the search."""
    study, shared = report.study, Shared()
    lines = {method: study.trials_of(method) for method in study.methods}
    progress = Drawn(
        "progress",
        "Best score so far",
        f"Validation {report.metric} of finished trials.",
        study_figures.progress(lines, report.metric),
    )
    found: dict[str, Any] = {"about": "", "places": [], "ranks": None, "across": {}}
    if report.analysis is not None:
        place = study.header.dataset
        drawings = Drawings({place: tuple(drawn(report.analysis, place, PICTURES))}, ())
        found = comparison_page.content(report.analysis, drawings, shared)
    return comparison_page.template("tuning/study_page.html").render(
        shared=shared,
        heading=report.heading,
        answer=report.answer,
        warnings=report.notes,
        are_pairs_open=True,
        facts=report.facts,
        budget=report.budget,
        progress=placed(progress, "search", shared),
        methods=[
            {
                "name": name,
                "parameters": tables.parameters(report, name),
                "pictures": [placed(one, f"m{k + 1}", shared) for one in _pictures(report, name)],
                "note": "" if report.importances[name].shares else report.importances[name].why,
            }
            for k, name in enumerate(study.methods)
        ],
        trials=tables.trials(report),
        failures=find_failures(report),
        **found,
    )


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
            figures.save(figure, folder / f"{method}-parallel.png")


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
