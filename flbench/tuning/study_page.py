"""Writes the results of a study: trials.csv, results.json, study.md and report.html.

The page report.html needs no server and no network. All files can be written again at any time,
also while the study is unfinished.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files as resources
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from flbench import __version__
from flbench.core import files
from flbench.core.csv_text import csv_text
from flbench.core.markup import in_markdown
from flbench.reports import figures
from flbench.reports import tables as blocks
from flbench.reports.tables import Block
from flbench.results import study_folder
from flbench.tuning import study_figures, tables
from flbench.tuning.failures import find_failures
from flbench.tuning.report import StudyReport

STATE = ("method", "index", "state", "reason", "round", "rounds", "score", "winner")
COST = (
    "train_seconds",
    "evaluate_seconds",
    "total_seconds",
    "attempts",
    "node",
    "started",
    "ended",
)


@dataclass(frozen=True)
class _Chapter:
    """Section of the page for one method.

    Attributes:
        name: Name of the method.
        parameters: Table of the best hyper-parameters; None while there is no best trial.
        pictures: Title, caption and SVG text of each figure.
    """

    name: str
    parameters: Block | None
    pictures: tuple[tuple[str, str, str], ...]


def write(path: Path) -> None:
    """Read a study folder and write its results into it. Each file is written atomically.

    Raises:
        UserError: The folder is not a study folder, or its folder `pictures` is a link.
        DataError: A file of the study is damaged.
        OSError: A file cannot be written.
    """
    files.check_no_link(path / "pictures")
    report = StudyReport(study_folder.read(path, lenient=True))
    texts = {
        "trials.csv": trials_csv(report),
        "results.json": as_json(report),
        "study.md": markdown(report),
        "report.html": page(report),
    }
    for name, text in texts.items():
        files.write(path / name, text.encode())
    _save_pictures(report, path / "pictures")


def trials_csv(report: StudyReport) -> str:
    """Return trials.csv: a line for each trial of the search.

    The column of a parameter is named by its configuration key. A parameter that a trial lacks is
    an empty cell.
    """
    study = report.study
    paths = list(dict.fromkeys(path for trial in study.trials for path in trial.params))
    winners = [study.winner(method) for method in study.methods]
    columns, rows = (*STATE, *paths, *COST), []
    for trial in study.trials:
        seconds = trial.seconds or {}
        line = {
            **{name: getattr(trial, name) for name in STATE[:-1]},
            "winner": int(trial in winners),
            **{path: json.dumps(value).strip('"') for path, value in trial.params.items()},
            **{f"{what}_seconds": seconds.get(what) for what in ("train", "evaluate", "total")},
            **{name: getattr(trial, name) for name in COST[3:]},
        }
        rows.append([line.get(column) for column in columns])
    return csv_text(columns, rows)


def as_json(report: StudyReport) -> str:
    """Return results.json: the whole report. NaN and infinity are written as null.

    Returns:
        The text of an object with the keys `flbench` (version), `study` (content of study.json
        without methods and command), `notes`, `methods`, `pairs` (comparisons of tuned methods, see
        `flbench.tuning.comparison.Pair`) and `failures`. The entry of a method has its `space` and
        `defaults`, the `winner` of the search, warnings about values `at_the_edge` of their range,
        the `importance` of its parameters, `finals` (see `flbench.tuning.comparison.Side`) and
        `seeds` (the study's metric on test by seed) for the default and the tuned parameters, the
        `gain` from tuning (see `flbench.reports.statistics.PairedDifference`), and the `verdict`
        about it.
    """
    study, header = report.study, report.study.header
    tree = {
        "flbench": __version__,
        "study": {
            key: value for key, value in asdict(header).items() if key not in ("methods", "command")
        },
        "notes": report.notes,
        "methods": {
            tuning.method: {
                **_winner(report, tuning.method),
                "finals": {variant: asdict(side) for variant, side in tuning.sides.items()},
                "seeds": {
                    variant: study.values(tuning.method, variant, header.metric)
                    for variant in tuning.sides
                },
                "gain": None if tuning.gain is None else asdict(tuning.gain),
                "verdict": tuning.verdict,
            }
            for tuning in report.tunings
        },
        "pairs": [asdict(pair) | {"verdict": pair.verdict} for pair in report.pairs],
        "failures": find_failures(report),
    }
    return json.dumps(_finite(tree), indent=1) + "\n"


def markdown(report: StudyReport) -> str:
    """Return study.md: the whole report without its figures."""
    parts = [f"# {in_markdown(report.heading)}"]
    parts.append("\n".join(f"- {key}: {in_markdown(text)}" for key, text in report.facts.items()))
    parts += [f"**{in_markdown(note)}**" for note in report.notes]
    parts.append(report.budget)
    parts += [blocks.markdown(block) for block in _opening(report)]
    parameters = [tables.parameters(report, method) for method in report.study.methods]
    if any(parameters):
        parts.append("## Best hyper-parameters")
    parts += [blocks.markdown(block, 3) for block in parameters if block is not None]
    parts += [blocks.markdown(block) for block in _closing(report)]
    if failures := find_failures(report):
        parts.append("## What failed, could not be scored, or is missing")
        parts.append("\n".join(f"- {in_markdown(line)}" for line in failures))
    parts.append(f"flbench {__version__}.")
    return "\n\n".join(parts) + "\n"


def page(report: StudyReport) -> str:
    """Return report.html."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    source = resources("flbench.tuning").joinpath("study_page.html").read_text(encoding="utf-8")
    study = report.study
    lines = {method: study.trials_of(method) for method in study.methods}
    return environment.from_string(source).render(
        report=report,
        blocks=_opening(report),
        progress=figures.svg(study_figures.progress(lines, report.metric)),
        methods=[
            _Chapter(name, tables.parameters(report, name), tuple(_pictures(report, name)))
            for name in study.methods
        ],
        closing=_closing(report),
        failures=find_failures(report),
        rare=tables.RARE,
    )


def _opening(report: StudyReport) -> list[Block]:
    """Return the tables at the beginning of the report."""
    found = (tables.gains(report), tables.comparisons(report), tables.other_metrics(report))
    return [block for block in (*found, tables.costs(report)) if block is not None]


def _closing(report: StudyReport) -> list[Block]:
    """Return the tables at the end of the report."""
    classes = tables.classes(report)
    found = [tables.trials(report)]
    return found if classes is None else [classes, *found]


def _pictures(report: StudyReport, method: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, caption and SVG text of each figure of a method; nothing without a score."""
    axes, trials = report.axes[method], report.study.trials_of(method)
    if not drawable(report, method):
        return
    yield (
        "All trials",
        f"Each line is a trial, coloured by its validation {report.metric}. The best trial is bold;"
        " trials that did not finish are dashed.",
        figures.svg(study_figures.parallel(axes, trials, report.metric)),
    )
    found = report.importances[method]
    bars = figures.svg(study_figures.shares(found.shares)) if found.shares else ""
    about = (
        "fANOVA over the finished trials: share of the score's variance that each parameter"
        " explains alone, normalized to a sum of 1."
    )
    yield (
        "Importance of the parameters",
        f"{about} {found.why}".strip() if bars else found.why,
        bars,
    )
    yield (
        "Score over each parameter",
        "The star is the best trial; trials that did not finish are hollow.",
        figures.svg(study_figures.scatter(axes, trials, report.metric)),
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
            axis.path: text
            for axis in report.axes[method]
            if (text := tables.edge(axis, won, method))
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


def _finite(tree: Any) -> Any:
    """Return a tree of JSON values: keys are text, NaN and infinity are null."""
    if isinstance(tree, dict):
        return {str(key): _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not isfinite(tree) else tree
