"""What failed in a study, what could not be scored, and what is still missing."""

from flbench.results.study_folder import VARIANTS, Study, Trial, Variant
from flbench.tuning.report import Report, count, title


def troubles(report: Report) -> list[str]:
    """Return a line for each."""
    study = report.study
    said = [line for trial in study.trials if (line := _trouble(trial, report.metric))]
    for method in study.methods:
        if study.winner(method) is None and study.trials_of(method):
            said.append(f"{method}: no trial has finished with a score, so there is no winner.")
        for variant in VARIANTS:
            said += _missing(study, method, variant)
    return said


def _trouble(trial: Trial, metric: str) -> str:
    """Return what is wrong with a trial of the search; "" if nothing is."""
    where = f"{trial.method}, trial {trial.index}"
    if trial.state == "finished":
        lacking = f"{where}: finished without a score, validation has no {metric}."
        return lacking if trial.score is None else ""
    if trial.state not in ("failed", "diverged"):
        return ""
    again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
    why = trial.reason or "no reason is given."
    return f"{where}: {trial.state} after {count(trial.round, 'round')}{again}: {why}"


def _missing(study: Study, method: str, variant: Variant) -> list[str]:
    """Return which final trainings of a method are not there, or lack the study's figure."""
    done = study.finals_of(method, variant)
    scored = study.values(method, variant, study.header.metric)
    begun = {
        final.trial.seed: final.trial
        for final in study.finals
        if (final.trial.method, final.trial.variant) == (method, variant)
    }
    won = study.winner(method)
    if variant == "tuned" and not begun and won is not None and won.index == 0:
        return []  # the defaults' own trainings stand for them
    said, waiting = [], []
    for seed in study.seeds:
        where = f"{method}, {variant}, seed {seed}"
        if seed in done:
            if seed not in scored:
                said.append(f"{where}: test has no {title(study.header.metric)}.")
        elif seed in begun:
            trial = begun[seed]
            said.append(f"{where}: {trial.state}{f': {trial.reason}' if trial.reason else '.'}")
        else:
            waiting.append(str(seed))
    if waiting:
        said.append(f"{method}, {variant}: not trained with seed {', '.join(waiting)}.")
    return said
