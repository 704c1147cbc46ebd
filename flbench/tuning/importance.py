"""Which parameters of a method the score depends on: fANOVA over its finished trials."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flbench.results.study_folder import Trial
from flbench.tuning.search_space import Parameter

ENOUGH = 8  # finished trials: a random forest that is fitted to fewer says little


class Importance(NamedTuple):
    """Importance of each parameter: the share of the score's variance that it explains alone.

    Attributes:
        shares: Shares by configuration key, in descending order; their sum is 1. Empty if the
            importance cannot be computed.
        why: A sentence that says why `shares` is empty, or which parameters are left out; "" if
            neither is the case.
    """

    shares: Mapping[str, float]
    why: str = ""


def importance(parameters: Sequence[Parameter], trials: Sequence[Trial]) -> Importance:
    """Compute the importance of a method's parameters by Optuna's fANOVA.

    Left out are fixed parameters, conditional parameters that some trials lack, and trials with a
    value outside its range, such as a default of null.

    Source: Hutter, Hoos, Leyton-Brown, ICML 2014, as implemented in Optuna.

    Args:
        parameters: Parameters of the method's space.
        trials: Trials of the method's search. Only finished trials with a score are used.
    """
    scored = [
        trial
        for trial in trials
        if trial.state == "finished"
        and trial.score is not None
        and all(one.holds(trial.params[one.path]) for one in parameters if one.path in trial.params)
    ]
    if len(scored) < ENOUGH:
        return Importance(
            {}, f"Too few finished trials in the ranges: {len(scored)}, and {ENOUGH} are needed."
        )
    if len({trial.score for trial in scored}) < 2:
        return Importance({}, "All finished trials have the same score.")
    columns = {p.path: [trial.params.get(p.path, ...) for trial in scored] for p in parameters}
    varied = {path for path, its in columns.items() if ... not in its and len(set(its)) > 1}
    varying = [parameter for parameter in parameters if parameter.path in varied]
    if not varying:
        return Importance({}, "No parameter varies over all finished trials.")
    try:
        import optuna
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances
        from optuna.trial import FixedTrial, create_trial
    except ImportError:
        return Importance({}, "Optuna is not installed: pip install 'flbench[tune]'.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for trial in scored:
        fixed = FixedTrial(dict(trial.params))
        for parameter in varying:
            parameter.suggest(fixed)
        study.add_trial(
            create_trial(params=fixed.params, distributions=fixed.distributions, value=trial.score)
        )
    shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    left = ", ".join(path for path in columns if path not in varied)
    why = f"Left out: {left} (fixed, or not set in each trial)." if left else ""
    return Importance(dict(sorted(shares.items(), key=lambda item: -item[1])), why)
