"""Results of a study: trials.csv, results.json, study.md, and report.html on one page.

The page needs no server and no network. All of it can be written again at any time, also while the
study is unfinished.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files as resources
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from flbench import __version__
from flbench.core import files
from flbench.reports import tables as blocks
from flbench.reports.tables import Block
from flbench.results import study_folder
from flbench.tuning import tables
from flbench.tuning.failures import troubles
from flbench.tuning.report import Report

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
    """A method on the page: its table, and pictures with title and caption, as SVG."""

    name: str
    parameters: Block | None
    pictures: tuple[tuple[str, str, str], ...]


def write(path: Path) -> None:
    """Read a study folder and write its results into it, each file whole or not at all.

    Raises: UserError if it is none, DataError if a file in it is damaged, OSError if a file cannot
        be written.
    """
    report = Report(study_folder.read(path))
    texts = {
        "trials.csv": trials_csv(report),
        "results.json": as_json(report),
        "study.md": markdown(report),
        "report.html": page(report),
    }
    for name, text in texts.items():
        files.write(path / name, text.encode())
    _save_pictures(report, path / "pictures")


def trials_csv(report: Report) -> str:
    """Return a line for each trial of the search; the columns of parameters have their paths."""
    study = report.study
    paths = list(dict.fromkeys(path for trial in study.trials for path in trial.params))
    winners = [study.winner(method) for method in study.methods]
    text = StringIO()
    writer = csv.DictWriter(text, (*STATE, *paths, *COST), lineterminator="\n")
    writer.writeheader()
    for trial in study.trials:
        seconds = trial.seconds or {}
        line = {
            **{name: getattr(trial, name) for name in STATE[:-1]},
            "winner": int(trial in winners),
            **{path: json.dumps(value).strip('"') for path, value in trial.params.items()},
            **{f"{what}_seconds": seconds.get(what) for what in ("train", "evaluate", "total")},
            **{name: getattr(trial, name) for name in COST[3:]},
        }
        writer.writerow({key: "" if value is None else value for key, value in line.items()})
    return text.getvalue()


def as_json(report: Report) -> str:
    """Return all that the report knows; what is no finite number is null."""
    study, header = report.study, report.study.header
    tree = {
        "flbench": __version__,
        "study": {
            key: value for key, value in asdict(header).items() if key not in ("methods", "command")
        },
        "remarks": report.remarks,
        "methods": {
            tuning.method: {
                **_winner(report, tuning.method),
                "finals": {variant: asdict(side) for variant, side in tuning.sides.items()},
                "seeds": {
                    variant: study.values(tuning.method, variant, header.metric)
                    for variant in tuning.sides
                },
                "brought": None if tuning.brought is None else asdict(tuning.brought),
                "verdict": tuning.word,
            }
            for tuning in report.tunings
        },
        "pairs": [asdict(pair) | {"verdict": pair.word} for pair in report.pairs],
        "troubles": troubles(report),
    }
    return json.dumps(_finite(tree), indent=1) + "\n"


def markdown(report: Report) -> str:
    """Return the whole report but its pictures."""
    parts = [f"# {report.heading}"]
    parts.append("\n".join(f"- {key}: {value}" for key, value in report.facts.items()))
    parts += [f"**{remark}**" for remark in report.remarks]
    parts.append(report.budget)
    parts += [blocks.markdown(block) for block in _opening(report)]
    parameters = [tables.parameters(report, method) for method in report.study.methods]
    if any(parameters):
        parts.append("## Best hyper-parameters")
    parts += [blocks.markdown(block, 3) for block in parameters if block is not None]
    parts += [blocks.markdown(block) for block in _closing(report)]
    if said := troubles(report):
        parts.append("## What failed, could not be scored, or is missing")
        parts.append("\n".join(f"- {line}" for line in said))
    parts.append(f"flbench {__version__}.")
    return "\n\n".join(parts) + "\n"


def page(report: Report) -> str:
    """Return report.html."""
    from jinja2 import Environment, StrictUndefined

    from flbench.reports import figures
    from flbench.tuning import study_figures

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
        evaluation_settings=_closing(report),
        troubles=troubles(report),
        rare=tables.RARE,
    )


def _opening(report: Report) -> list[Block]:
    found = (tables.brought(report), tables.rivals(report), tables.figures(report))
    return [block for block in (*found, tables.prices(report)) if block is not None]


def _closing(report: Report) -> list[Block]:
    classes = tables.classes(report)
    found = [tables.trials(report)]
    return found if classes is None else [classes, *found]


def _pictures(report: Report, method: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, caption and SVG of a method's pictures; none while it has nothing to draw."""
    from flbench.reports import figures
    from flbench.tuning import study_figures

    axes, trials = report.axes[method], report.study.trials_of(method)
    if not drawable(report, method):
        return
    yield (
        "All trials",
        f"A line is a trial, coloured by its validation {report.metric}; the winner is bold,"
        " trials that did not finish are faint.",
        figures.svg(study_figures.parallel(axes, trials, report.metric)),
    )
    found = report.importances[method]
    bars = figures.svg(study_figures.shares(found.shares)) if found.shares else ""
    about = (
        "By fANOVA over the finished trials: what each parameter explains alone, adding up to 1."
    )
    yield (
        "What the score depends on",
        f"{about} {found.why}".strip() if bars else found.why,
        bars,
    )
    yield (
        "Score against each parameter",
        "The star is the winner; trials that did not finish are faint.",
        figures.svg(study_figures.scatter(axes, trials, report.metric)),
    )


def drawable(report: Report, method: str) -> bool:
    """Return whether a method has a trial with a score and a parameter that is searched."""
    scored = any(trial.score is not None for trial in report.study.trials_of(method))
    return scored and any(not axis.fixed for axis in report.axes[method])


def _save_pictures(report: Report, folder: Path) -> None:
    """Write `METHOD-parallel.png` of each method that has one."""
    from flbench.reports import figures
    from flbench.tuning import study_figures

    folder.mkdir(exist_ok=True)
    for method in report.study.methods:
        if drawable(report, method):
            trials = report.study.trials_of(method)
            figure = study_figures.parallel(report.axes[method], trials, report.metric)
            figures.save(figure, folder / f"{method}-parallel.png")


def _winner(report: Report, method: str) -> dict[str, Any]:
    """Return what the search found for a method."""
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
    """Return a tree that JSON can hold."""
    if isinstance(tree, dict):
        return {str(key): _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not isfinite(tree) else tree
