"""Which parameters of a method the score depends on: fANOVA over all trials at one round."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flbench.results.study_folder import StoredStudy, Trial
from flbench.tuning.scores import by_round
from flbench.tuning.search_space import Parameter
from flbench.tuning.study import TrialFolder

ENOUGH: Final = 8  # trials: a random forest that is fitted to fewer says little
TREES: Final = 16  # a forest of 64 gives the same order, and takes four times as long
PERMUTATIONS: Final = 39  # of the scores: the smallest p is 1 / 40


class Importance(NamedTuple):
    """Importance of each parameter: the share of the score's variance that it explains alone.

    Attributes:
        shares: Shares by configuration key, in descending order; their sum is 1. Empty if the
            importance cannot be computed.
        why: A sentence that says why `shares` is empty, or which parameters are left out; "" if
            neither is the case.
        p: The share of orders of the scores, `PERMUTATIONS` random ones and that of the trials, in
            which the parameter has as large a share.
    """

    shares: Mapping[str, float]
    why: str = ""
    p: Mapping[str, float] = {}


def at_first_rung(study: StoredStudy, method: str) -> tuple[int, dict[int, float]]:
    """Return the last round that all trials of a method have reached, and their scores after it.

    It is the first rung of the scheduler if that has stopped a trial, else the last round. Trials
    that run, have failed or have no score are left out, and scores that are not finite.

    Returns:
        The number of rounds (0 without a trial), and the scores by the numbers of the trials.
    """
    scores: dict[int, dict[int, float]] = {}
    for trial in study.trials_of(method):
        if trial.state not in ("finished", "stopped") or trial.score is None:
            continue
        folder = TrialFolder(study.path, method, trial.index).path
        found = by_round(folder, study.header.metric, nan)
        known = {done: value for done, value in found.items() if isfinite(value)}
        scores[trial.index] = known | {trial.round: trial.score}
    number = min((max(known) for known in scores.values()), default=0)
    return number, {k: known[number] for k, known in scores.items() if number in known}


def importance(
    parameters: Sequence[Parameter], trials: Sequence[Trial], scores: Mapping[int, float]
) -> Importance:
    """Compute the importance of a method's parameters by Optuna's fANOVA, and its uncertainty.

    Left out are conditional parameters that some trials lack, and trials with a
    value outside its range, such as a default of null. Parameters without an effect get shares too,
    by chance; those of the permuted scores, in which no parameter has one, show how large.

    Source: Hutter, Hoos, Leyton-Brown, ICML 2014, as implemented in Optuna.

    Args:
        parameters: Parameters of the method's space.
        trials: Trials of the method's search.
        scores: Scores after one round by the number of the trial; others are left out.
    """
    scored = [
        trial
        for trial in trials
        if trial.index in scores
        and all(one.holds(trial.params[one.path]) for one in parameters if one.path in trial.params)
    ]
    if len(scored) < ENOUGH:
        few = f"Too few trials with a score in the ranges: {len(scored)}, and {ENOUGH} are needed."
        return Importance({}, few)
    values = np.array([scores[trial.index] for trial in scored])
    if len({*values}) < 2:
        return Importance({}, "All trials have the same score.")
    columns = {p.path: [trial.params.get(p.path, ...) for trial in scored] for p in parameters}
    varied = {path for path, its in columns.items() if ... not in its and len(set(its)) > 1}
    varying = [parameter for parameter in parameters if parameter.path in varied]
    if not varying:
        return Importance({}, "No parameter varies over all trials.")
    try:
        import optuna
    except ImportError:
        return Importance({}, "Optuna is not installed: pip install 'flbench[tune]'.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    fixed = [optuna.trial.FixedTrial(dict(trial.params)) for trial in scored]
    for one in fixed:
        for parameter in varying:
            parameter.suggest(one)
    rng = np.random.default_rng(0)
    permuted = [_shares(fixed, rng.permutation(values)) for _ in range(PERMUTATIONS)]
    shares = _shares(fixed, values)
    left = ", ".join(path for path in columns if path not in varied)
    return Importance(
        shares,
        f"Left out: {left} (not set in each trial, or always the same)." if left else "",
        {
            path: (1 + sum(one[path] >= share for one in permuted)) / (1 + PERMUTATIONS)
            for path, share in shares.items()
        },
    )


def _shares(trials: Sequence[Any], values: NDArray[np.float64]) -> dict[str, float]:
    """Return the importances of trials of Optuna with these scores, in descending order."""
    from optuna import create_study
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    study = create_study(direction="maximize")
    for one, value in zip(trials, values, strict=True):
        study.add_trial(
            create_trial(params=one.params, distributions=one.distributions, value=float(value))
        )
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=TREES, seed=0))
    return {path: float(found[path]) for path in sorted(found, key=lambda one: -found[one])}
