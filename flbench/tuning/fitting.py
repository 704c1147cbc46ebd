"""Fits a search space to a configuration, before any training starts.

Parameters that the user sets by a key are not searched, and the method's configuration
must accept the values of all others.
"""

from collections.abc import Sequence
from typing import Any, Final

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_values, has_value, leaves, value_at
from flbench.core.errors import ConfigError
from flbench.tuning.search_space import Parameter, Scalar, Space

RATE: Final = "train.optimizer.lr"
FIXING: Final = ("command line", "argument of fl.tune")
"""Origins of values that are not searched. Values of a file change the default trial only."""
BETWEEN: Final = 0.381966  # a position in a range that is, in general, not a whole number


def fit(space: Space, layers: Sequence[Layer]) -> tuple[Space, list[str]]:
    """Return the space without the parameters that are already set, and notes for the user.

    A parameter that the user sets on the command line, or as an argument, is not searched. The
    configuration must accept both ends of each range, a number between them, and each choice.

    Args:
        space: Search space of one method.
        layers: Layers of the base configuration, with the key `algorithm.name`.

    Raises:
        ConfigError: The method refuses a value of the space (one line for each such value), or no
            parameter is left to search.
    """
    config, origins = resolve(layers)
    values = leaves(config.tree())
    given = {p: values[p] for p in space.parameters if origins.get(p) in FIXING}
    searched = space.without(given)
    notes = [
        f"{space.method}: `{path}` is {given[path]!r} ({origins[path]}), not searched."
        if path in given
        else f"{space.method}: `{path}` is not searched: its condition does not hold."
        for path in space.parameters
        if path not in searched.parameters
    ]
    if all(parameter.fixed for parameter in searched.parameters.values()):
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
    refused = [
        why
        for parameter in searched.parameters.values()
        for value in parameter.choices or (parameter.low, parameter.at(BETWEEN), parameter.high)
        if (why := _refusal(parameter, value, searched, layers))
    ]
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))
    return searched, notes


def _refusal(parameter: Parameter, value: Scalar, space: Space, layers: Sequence[Layer]) -> str:
    """Return why the configuration refuses a value; "" if it accepts the value."""
    path, place = parameter.path, parameter.place or space.source
    leading = {other: values[0] for other, values in space.required(path).items()}
    try:
        config, _ = resolve([*layers, from_values({**leading, path: value}, place)])
    except ConfigError as error:
        return str(error)
    tree = config.tree()
    taken = value_at(tree, path) if has_value(tree, path) else None
    if taken == value:
        return ""
    return (
        f"`{path}`: the configuration reads {value!r} as {taken!r} ({place}). Write {taken!r} in"
        " the search space."
    )


def is_limit(parameter: Parameter, end: str, method: str) -> bool:
    """Whether a method, with its other defaults, refuses what lies beyond an end of a parameter.

    Args:
        parameter: The parameter, with numbers as its values.
        end: `low` or `high`.
        method: Name of the method.
    """
    values: Any = parameter.choices or (parameter.low, parameter.high)
    step = (
        1 if all(isinstance(value, int) for value in values) else 1e-6 * (max(values) - min(values))
    )
    last, beyond = (
        (min(values), min(values) - step) if end == "low" else (max(values), max(values) + step)
    )
    return _accepts(method, parameter.path, last) and not _accepts(method, parameter.path, beyond)


def _accepts(method: str, path: str, value: float) -> bool:
    try:
        resolve([from_values({"algorithm": method, path: value}, "search space")])
    except ConfigError:
        return False
    return True
