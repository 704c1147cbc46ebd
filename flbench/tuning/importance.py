"""Which parameters of a method the score depends on: fANOVA over its finished trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.results.study_folder import Trial
from flbench.tuning.axes import Axis

ENOUGH = 8  # finished trials: a random forest that is fitted to fewer says little


@dataclass(frozen=True)
class Importance:
    """Importance of each parameter: the share of the score's variance that it explains alone.

    Attributes:
        shares: Shares by configuration key, in descending order; their sum is 1. Empty if the
            importance cannot be computed.
        why: A sentence that says why `shares` is empty, or which parameters are left out; "" if
            neither is the case.
    """

    shares: Mapping[str, float]
    why: str = ""


def importance(axes: Sequence[Axis], trials: Sequence[Trial]) -> Importance:
    """Compute the importance of a method's parameters by fANOVA.

    Left out are fixed parameters, conditional parameters that some trials lack, and parameters
    with a value that their axis cannot show, such as a default of 0 on a logarithmic axis.

    Source: Hutter, Hoos, Leyton-Brown, ICML 2014, as implemented in Optuna.

    Args:
        axes: Axes of the parameters of the method's space.
        trials: Trials of the method's search. Only finished trials with a score are used.
    """
    scored = [trial for trial in trials if trial.state == "finished" and trial.score is not None]
    if len(scored) < ENOUGH:
        return Importance({}, f"Too few finished trials: {len(scored)}, and {ENOUGH} are needed.")
    # A default such as null or 0 may lie on no axis. Leaving out the default trial (index 0) is
    # better than leaving out the parameter.
    drawn = [trial for trial in scored if trial.index != 0]
    shared = [axis for axis in axes if _varies(axis, scored)]
    more = [axis for axis in axes if _varies(axis, drawn)]
    if len(drawn) >= ENOUGH and len(more) > len(shared):
        scored, shared = drawn, more
    left = [axis.path for axis in axes if axis not in shared]
    if len({trial.score for trial in scored}) < 2:
        return Importance({}, "All finished trials have the same score.")
    if not shared:
        return Importance({}, "No parameter varies over all finished trials.")
    try:
        shares = _fanova(shared, scored)
    except ImportError:
        return Importance({}, "Optuna is not installed: pip install 'flbench[tune]'.")
    why = (
        f"Left out: {', '.join(left)} (fixed, or without a number to compare in each trial)."
        if left
        else ""
    )
    return Importance(dict(sorted(shares.items(), key=lambda item: -item[1])), why)


def _varies(axis: Axis, trials: Sequence[Trial]) -> bool:
    """Whether all trials set a parameter, to different values that its axis can show."""
    if axis.fixed or any(axis.path not in trial.params for trial in trials):
        return False
    wide = axis.extended([trial.params[axis.path] for trial in trials])
    places = {wide.position_in(trial.params) for trial in trials}
    return None not in places and len(places) > 1


def _fanova(axes: Sequence[Axis], trials: Sequence[Trial]) -> dict[str, float]:
    """Return Optuna's fANOVA importances by configuration key; their sum is 1."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Defaults, and parameters that population based training changes, may lie outside the space.
    wide = [axis.extended([trial.params[axis.path] for trial in trials]) for axis in axes]
    distributions = {axis.path: _distribution(axis) for axis in wide}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            create_trial(
                params={axis.path: _value(axis, trial.params[axis.path]) for axis in wide},
                distributions=distributions,
                value=trial.score,
            )
            for trial in trials
        ]
    )
    shares: dict[str, float] = get_param_importances(
        study, evaluator=FanovaImportanceEvaluator(seed=0)
    )
    return shares


def _distribution(axis: Axis) -> Any:
    """Return Optuna's distribution for an axis; a choice is represented by its index."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if axis.choices:
        return CategoricalDistribution(range(len(axis.choices)))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _value(axis: Axis, value: Any) -> float | int:
    """Return a value as `_distribution` represents it."""
    if axis.choices:
        return axis.choices.index(value)
    return int(value) if axis.whole else float(value)
