"""Fits a search space to a configuration, before any training starts.

Parameters that the user sets by a key are not searched, and the method's configuration
must accept the values of all others.
"""

from collections.abc import Sequence
from typing import Final

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, has_value, leaves, value_at
from flbench.core.errors import ConfigError
from flbench.tuning.parameters import FixedValue, Parameter, Scalar, Uniform
from flbench.tuning.search_space import Space, layer

RATE: Final = "train.optimizer.lr"
FIXING: Final = ("command line", "argument of fl.tune")
"""Origins of values that are not searched. Values of a file change the default trial only."""


def fit(space: Space, layers: Sequence[Layer]) -> tuple[Space, list[str]]:
    """Return the space without the parameters that are already set, and notes for the user.

    A parameter that the user sets on the command line, or as an argument, is not searched.

    Args:
        space: Search space of one method.
        layers: Layers of the base configuration, with the key `algorithm.name`.

    Raises:
        ConfigError: The method refuses a value of the space (one line for each such value), or no
            parameter is left to search.
    """
    config, origins = resolve(layers)
    if config.algorithm.name != space.method:
        raise ValueError(
            f"the search space is for {space.method}, but algorithm.name={config.algorithm.name}."
        )
    values = leaves(config.tree())
    given = {p: values[p] for p in space.parameters if origins.get(p) in FIXING}
    searched = space.without(given)
    notes = [
        f"{space.method}: `{path}` is {given[path]!r} ({origins[path]}), not searched."
        for path in given
    ]
    notes += [
        f"{space.method}: `{path}` is not searched: its condition does not hold."
        for path in space.parameters
        if path not in searched.parameters and path not in given
    ]
    if all(isinstance(parameter, FixedValue) for parameter in searched.parameters.values()):
        settled = f"; given: {', '.join(given)}" if given else ""
        raise ConfigError(
            f"no parameter of `{space.method}` is left to search ({space.source}{settled}). Remove"
            " a key that is given, or compare the methods without a search"
            f" ({'flbench compare'})."
        )
    if RATE not in space.parameters and not values.get("model.lightning"):
        notes.append(
            f"{space.method}: its space ({space.source}) has no `{RATE}`, so that all trials use"
            f" {values[RATE]:g}. A comparison with methods whose learning rate is searched is not"
            " fair."
        )
    check(searched, layers)
    return searched, notes


def check(space: Space, layers: Sequence[Layer]) -> None:
    """Check that a method's configuration accepts the values of its search space.

    Checked are both ends of each range, one value between them, and each choice.

    Args:
        space: Search space of one method.
        layers: Layers of the base configuration.

    Raises:
        ConfigError: The configuration refuses values. There is one line for each, with the file
            and line, the key, the value, and what is allowed.
    """
    refused: list[str] = []
    for path, parameter in space.parameters.items():
        refused += _refused(path, parameter, space, layers)
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))


def _refused(path: str, parameter: Parameter, space: Space, layers: Sequence[Layer]) -> list[str]:
    """Return a line for each value of one parameter that the configuration refuses."""
    reasons = {value: _why(path, value, space, layers) for value in parameter.probes()}
    lines = [why for why in reasons.values() if why]
    if isinstance(parameter, Uniform) and lines and not any(map(reasons.get, parameter.limits)):
        return [f"{line} For whole numbers write `int`." for line in lines]
    return lines


def _why(path: str, value: Scalar, space: Space, layers: Sequence[Layer]) -> str:
    """Return why the configuration refuses a value; "" if it accepts the value."""
    params = {**space.leading_to(path), path: value}
    try:
        config, _ = resolve([*layers, layer(params, space.origins)])
    except ConfigError as error:
        return str(error)
    tree = config.tree()
    taken = value_at(tree, path) if has_value(tree, path) else None
    if taken == value:
        return ""
    place = space.origins[path]
    return (
        f"`{path}`: the configuration reads {value!r} as {taken!r} ({place}). Write {taken!r} in"
        " the search space."
    )
