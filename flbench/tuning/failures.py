"""Trials of a study that failed or have no score."""

from flbench.results.study_folder import StoredStudy, Trial
from flbench.tuning.report import StudyReport, count


def find_failures(report: StudyReport) -> list[str]:
    """Return a sentence for each failed trial and missing score of a study."""
    study = report.study
    lines = [line for trial in study.trials if (line := _failure_of_trial(trial, report.metric))]
    for method in study.methods:
        if study.winner(method) is None and study.trials_of(method):
            lines.append(f"{method}: no trial has finished with a score, so there is no winner.")
    return lines


def search_failure(study: StoredStudy) -> str | None:
    """Return why a study, or a method of it, has no result; None if each method has a winner.

    The sentences name the first reason of each method without a trial that finished with a score.
    """
    lost = [method for method in study.methods if study.winner(method) is None]
    if not lost:
        return None
    reasons = [
        f"{method}: {next((trial.reason for trial in study.trials_of(method) if trial.reason), '')}"
        for method in lost
        if any(trial.reason for trial in study.trials_of(method))
    ]
    which = "" if len(lost) == len(study.methods) else f" of {', '.join(lost)}"
    return " ".join([f"no trial{which} finished with a score.", *reasons])


def _failure_of_trial(trial: Trial, metric: str) -> str:
    """Return why a trial of the search has no score, or failed; "" if neither is the case."""
    where = f"{trial.method}, trial {trial.index}"
    if trial.state == "finished":
        lacking = f"{where}: finished without a score: the validation parts have no {metric}."
        return lacking if trial.score is None else ""
    if trial.state not in ("failed", "diverged"):
        return ""
    again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
    why = trial.reason or "no reason is given."
    return f"{where}: {trial.state} after {count(trial.round, 'round')}{again}: {why}"
