"""Search spaces as those of Ray Tune and of its OptunaSearch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ray import tune

from flbench.tuning.parameters import (
    Choice,
    FixedValue,
    Int,
    LogUniform,
    Parameter,
    Params,
    QUniform,
    Scalar,
    Uniform,
)
from flbench.tuning.search_space import Space


def to_ray(space: Space, defaults: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return a space as Ray Tune's search space objects, by dotted key.

    A parameter with conditions becomes `tune.sample_from`, which has the default where they do not
    hold: the values of a configuration that the trial does not search. Ray Tune evaluates such
    functions itself, in random search; no search algorithm can read them.

    Args:
        space: The search space.
        defaults: Default of each parameter by its dotted key.
    """
    return {
        path: tune.sample_from(partial(_drawn, path, space, dict(defaults)))
        if parameter.when
        else _domain(parameter)
        for path, parameter in space.parameters.items()
    }


def define_by_run(space: Space) -> Callable[[Any], Params]:
    """Return a function that draws parameters from a trial of Optuna, with conditions.

    Args:
        space: The search space.
    """
    return partial(_suggested, space)


def _suggested(space: Space, trial: Any) -> Params:
    """Return the active parameters of a trial of Optuna."""
    return space.assign(lambda path, parameter: parameter.suggest(trial, path))


def _drawn(
    path: str, space: Space, defaults: Mapping[str, Scalar], config: Mapping[str, Any]
) -> Any:
    """Return a value of a parameter with conditions, given the values of the others."""
    held = all(config[other] in these for other, these in space.required(path).items())
    if not held:
        return defaults[path]
    domain = _domain(space.parameters[path])
    return domain.sample() if hasattr(domain, "sample") else domain


def _domain(parameter: Parameter) -> Any:
    """Return Ray Tune's object for a parameter without its conditions."""
    match parameter:
        case FixedValue():
            return parameter.value
        case Choice():
            return tune.choice(list(parameter.values))
        case Int():  # Ray Tune's upper end is exclusive
            low, high = parameter.ends
            kind = tune.lograndint if parameter.log else tune.randint
            return kind(low, high + 1)
        case QUniform():
            kind = tune.qrandint if _whole(parameter) else tune.quniform
            return kind(*parameter.ends)
        case LogUniform():
            return tune.loguniform(*parameter.limits)
        case Uniform():
            return tune.uniform(*parameter.limits)
    raise TypeError(f"{type(parameter).__name__} has no counterpart in Ray Tune.")


def _whole(parameter: QUniform) -> bool:
    """Whether ends and step are whole, and therefore all values."""
    return all(isinstance(end, int) for end in parameter.ends)
