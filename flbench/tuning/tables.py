"""Tables of a study's search, as text for the console, Markdown and HTML."""

from flbench.analysis import blocks
from flbench.reports.tables import Block, share
from flbench.results.study_folder import STATES, Trial, best_trial
from flbench.tuning.fitting import is_limit
from flbench.tuning.report import StudyReport
from flbench.tuning.search_space import Parameter, shown


def comparison(report: StudyReport) -> list[Block]:
    """Return the tables of the default and the tuned methods: leaderboard and differences."""
    if report.analysis is None:
        return []
    place = report.study.header.dataset
    board = blocks.leaderboard_block(report.analysis, place)
    return [board, *blocks.pairs_blocks(report.analysis, place)]


def parameters(report: StudyReport, method: str) -> Block | None:
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
    return Block(
        f"{method}: trial {won.index} won",
        ("parameter", "space", "default", "best", ""),
        rows,
        texts=(0, 1, 4),
    )


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


def trials(report: StudyReport) -> Block:
    """Return the table of the trials by method: scores, states, and the cost of the search."""
    study, rows = report.study, []
    for method in study.methods:
        mine = study.trials_of(method)
        first = best_trial([trial for trial in mine if trial.index == 0])
        spent = sum((trial.seconds or {}).get("total", 0.0) for trial in mine)
        rows.append(
            (
                method,
                *(share(trial and trial.score) for trial in (first, study.winner(method))),
                *(str(sum(trial.state == state for trial in mine)) for state in STATES),
                str(max(0, study.header.trials - len(mine))),
                str(sum(trial.attempts > 1 for trial in mine)),
                str(sum(trial.round for trial in mine)),
                f"{spent:.1f}",
            )
        )
    return Block(
        "Trials of the search",
        ("method", "default", "best", *STATES, "not begun", "retried", "rounds", "seconds"),
        tuple(rows),
        f"Default and best: validation {report.metric} of the default trial and of the best one,"
        " each from one training with the seed of the study; the score of the best of many trials"
        " is optimistic."
        " Stopped: by the scheduler. Rounds and seconds are sums over all trials.",
    )
