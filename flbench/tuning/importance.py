"""Which parameters of a method the score depends on: fANOVA over its finished trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.results.study_folder import Trial
from flbench.tuning.axes import Axis

ENOUGH = 8  # finished trials: a forest of regressions says little about fewer


@dataclass(frozen=True)
class Importance:
    """How much of the score's variance each parameter explains alone, as shares of their sum.

    Attributes:
        shares: by path, largest first, adding up to 1; empty where it cannot be said.
        why: why not, as a sentence, or what was left out; "" if nothing.
    """

    shares: Mapping[str, float]
    why: str = ""


def importance(axes: Sequence[Axis], trials: Sequence[Trial]) -> Importance:
    """Return the shares of a method's parameters (fANOVA: Hutter, Hoos, Leyton-Brown, ICML 2014).

    Left out are parameters that are fixed, that some trials lack (conditional ones), and that
    have a value which their axis cannot show, such as a default of 0 on a logarithmic one.

    Args:
        axes: of the method's space.
        trials: of the search; finished ones with a score count.
    """
    scored = [trial for trial in trials if trial.state == "finished" and trial.score is not None]
    if len(scored) < ENOUGH:
        return Importance({}, f"Too few finished trials: {len(scored)}, and {ENOUGH} are needed.")
    # A default such as null or 0 may be on no axis: one trial less is better than a parameter less.
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
    """Return whether all trials set a parameter, to values that the axis shows and that differ."""
    if axis.fixed or any(axis.path not in trial.params for trial in trials):
        return False
    wide = axis.over([trial.params[axis.path] for trial in trials])
    places = {wide.of(trial.params) for trial in trials}
    return None not in places and len(places) > 1


def _fanova(axes: Sequence[Axis], trials: Sequence[Trial]) -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Defaults, and what PBT makes of parameters, may lie outside the space.
    wide = [axis.over([trial.params[axis.path] for trial in trials]) for axis in axes]
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
    """Return the axis as Optuna has it; a choice as the number of its value."""
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
    if axis.choices:
        return axis.choices.index(value)
    return int(value) if axis.whole else float(value)
