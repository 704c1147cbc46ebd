"""Search spaces as Ray Tune's search space objects."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ray import tune

from flbench.tuning.search_space import Parameter, Scalar, Space


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
        path: tune.sample_from(partial(_drawn, parameter, space.required(path), defaults[path]))
        if parameter.when
        else _domain(parameter)
        for path, parameter in space.parameters.items()
    }


def _drawn(
    parameter: Parameter,
    required: Mapping[str, tuple[Scalar, ...]],
    default: Scalar,
    config: Mapping[str, Any],
) -> Any:
    """Return a value of a parameter with conditions, given the values of the others."""
    if not all(config[other] in these for other, these in required.items()):
        return default
    domain = _domain(parameter)
    return domain if parameter.fixed else domain.sample()


def _domain(parameter: Parameter) -> Any:
    """Return Ray Tune's object for a parameter without its conditions."""
    if parameter.choices:
        return parameter.choices[0] if parameter.fixed else tune.choice(list(parameter.choices))
    if parameter.whole:  # Ray Tune's upper end is exclusive
        kind = tune.lograndint if parameter.log else tune.randint
        return kind(parameter.low, parameter.high + 1)
    return (tune.loguniform if parameter.log else tune.uniform)(parameter.low, parameter.high)
