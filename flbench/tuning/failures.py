"""Trials of a study that failed or have no score, and final trainings that are missing."""

from flbench.results.study_folder import VARIANTS, StoredStudy, Trial, Variant
from flbench.tuning.report import StudyReport, count


def find_failures(report: StudyReport) -> list[str]:
    """Return a sentence for each failure, missing score and missing final training of a study."""
    study = report.study
    lines = [line for trial in study.trials if (line := _failure_of_trial(trial, report.metric))]
    for method in study.methods:
        if study.winner(method) is None and study.trials_of(method):
            lines.append(f"{method}: no trial has finished with a score, so there is no winner.")
        for variant in VARIANTS:
            lines += _missing(study, method, variant, report.metric)
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


def _missing(study: StoredStudy, method: str, variant: Variant, metric: str) -> list[str]:
    """Return a sentence for each final training that is missing or lacks the study's metric."""
    done = study.finals_of(method, variant)
    scored = study.values(method, variant, study.header.metric)
    begun = {
        final.trial.seed: final.trial
        for final in study.finals
        if (final.trial.method, final.trial.variant) == (method, variant)
    }
    won = study.winner(method)
    if variant == "tuned" and not begun and won is not None and won.index == 0:
        return []  # the final trainings of the defaults are those of the tuned parameters too
    lines, waiting = [], []
    for seed in study.seeds:
        where = f"{method}, {variant}, seed {seed}"
        if seed in done:
            if seed not in scored:
                lines.append(f"{where}: the test parts have no {metric}.")
        elif seed in begun:
            trial = begun[seed]
            lines.append(f"{where}: {trial.state}{f': {trial.reason}' if trial.reason else '.'}")
        else:
            waiting.append(str(seed))
    if waiting:
        lines.append(f"{method}, {variant}: not trained with seed {', '.join(waiting)}.")
    return lines
