"""Tables of a study's search, as text for the console, Markdown and HTML."""

from typing import Any

from flbench.analysis.shown import TABLES
from flbench.reports import render
from flbench.reports.shown import Column, Shown, score, tenth, whole
from flbench.results.study_folder import STATES, Trial, best_trial
from flbench.tuning.fitting import is_limit
from flbench.tuning.report import StudyReport
from flbench.tuning.search_space import Parameter, shown


def comparison(report: StudyReport) -> list[Shown]:
    """Return the tables of the default and the tuned methods: leaderboard and differences."""
    if report.analysis is None:
        return []
    place = report.study.header.dataset
    names = ("leaderboard", "pairs")
    return [one for name in names for one in TABLES[name](report.analysis, place)]


def parameters(report: StudyReport, method: str) -> Shown | None:
    """Return the table of a method's best hyper-parameters; None while there is no best trial."""
    won = report.study.winner(method)
    if won is None:
        return None
    defaults = report.study.header.methods[method].defaults
    rows = tuple(
        (
            axis.path,
            axis.values,
            shown(defaults[axis.path]) if axis.path in defaults else "-",
            shown(won.params[axis.path]) if axis.path in won.params else "not set",
            edge(axis, won, method),
        )
        for axis in report.axes[method]
    )
    headings = ("parameter", "space", "default", "best", "")
    return render.plain(f"{method}: trial {won.index} won", headings, rows)


def winner(report: StudyReport, method: str) -> str:
    """Return a method's best hyper-parameters as one line, with warnings; "" if there are none."""
    won = report.study.winner(method)
    if won is None:
        return ""
    values = ", ".join(f"{path}={shown(value)}" for path, value in won.params.items())
    warnings = [
        f"{axis.path} {warning}"
        for axis in report.axes[method]
        if (warning := edge(axis, won, method))
    ]
    return "; ".join([f"{method}, trial {won.index}: {values}", *warnings])


def edge(axis: Parameter, won: Trial, method: str) -> str:
    """Return a warning if the best value lies at an end of its range; "" otherwise.

    Args:
        axis: The parameter.
        won: The best trial.
        method: Name of the method, which the hard limits of the parameter depend on.
    """
    end = axis.end(won.params.get(axis.path))
    if end is None:
        return ""
    if is_limit(axis, end, method):
        return f"at the {end} end, which is a limit of the parameter itself"
    return f"at the {end} end: widen the space"


def trials(report: StudyReport) -> Shown:
    """Return the table of the trials by method: scores, states, and the cost of the search."""
    study = report.study
    rows: list[dict[str, Any]] = []
    for method in study.methods:
        mine = study.trials_of(method)
        first = best_trial([trial for trial in mine if trial.index == 0])
        won = study.winner(method)
        rows.append(
            {
                "method": method,
                "default": None if first is None else first.score,
                "best": None if won is None else won.score,
                **{state: sum(trial.state == state for trial in mine) for state in STATES},
                "not begun": max(0, study.header.trials - len(mine)),
                "retried": sum(trial.attempts > 1 for trial in mine),
                "rounds": sum(trial.round for trial in mine),
                "seconds": sum((trial.seconds or {}).get("total", 0.0) for trial in mine),
            }
        )
    counts = [*STATES, "not begun", "retried", "rounds"]
    return Shown(
        "Trials of the search",
        {
            "method": Column("method"),
            **{name: Column(name, score) for name in ("default", "best")},
            **{name: Column(name, whole) for name in counts},
            "seconds": Column("seconds", tenth),
        },
        rows,
        f"Default and best: validation {report.metric} of the default trial and of the best one,"
        " each from one training with the seed of the study; the score of the best of many trials"
        " is optimistic."
        " Stopped: by the scheduler. Rounds and seconds are sums over all trials.",
    )
