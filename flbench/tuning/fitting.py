"""A space over a configuration: what the user settled leaves it, and the method must take the rest.

All of it before anything starts.
"""

from collections.abc import Sequence
from typing import Final

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, leaves
from flbench.core.errors import ConfigError
from flbench.tuning.parameters import Fixed, Parameter, Scalar, Uniform
from flbench.tuning.space import Space, layer

RATE: Final = "train.optimizer.lr"
COMMAND_LINE: Final = "command line"  # the origin that `layers.from_overrides` writes


def fit(space: Space, layers: Sequence[Layer]) -> tuple[Space, list[str]]:
    """Return the space as it is searched over a base configuration, and notes for the user.

    A parameter that the user sets on the command line is not searched.

    Args:
        space: of one method.
        layers: of the base configuration, `algorithm.name` among them.

    Raises: ConfigError with a line for each value that the method refuses, or if nothing is left.
    """
    config, origins = resolve(layers)
    if config.algorithm.name != space.method:
        raise ValueError(f"the space of {space.method} over {config.algorithm.name}")
    values = leaves(config.tree())
    given = {p: values[p] for p in space.parameters if origins.get(p) == COMMAND_LINE}
    open_ = space.without(given)
    notes = [
        f"{space.method}: `{path}` is {given[path]!r} (command line), not searched."
        for path in given
    ]
    notes += [
        f"{space.method}: `{path}` is not searched, its condition does not hold."
        for path in space.parameters
        if path not in open_.parameters and path not in given
    ]
    if all(isinstance(parameter, Fixed) for parameter in open_.parameters.values()):
        settled = f"; on the command line: {', '.join(given)}" if given else ""
        raise ConfigError(
            f"nothing is left to search for `{space.method}` ({space.source}{settled}). Leave a"
            " key to the search, or compare with `flbench run`."
        )
    if RATE not in space.parameters:
        notes.append(
            f"{space.method}: its space ({space.source}) has no `{RATE}`, so that all trials take"
            f" {values[RATE]:g}. Methods whose rate was never searched compare badly."
        )
    check(open_, layers)
    return open_, notes


def check(space: Space, layers: Sequence[Layer]) -> None:
    """Try the ends of each range, a value between them, and each choice on the configuration.

    Raises: ConfigError with a line for each value that the method refuses: file and line, key,
        value, what is allowed.
    """
    refused: list[str] = []
    for path, parameter in space.parameters.items():
        refused += _refused(path, parameter, space, layers)
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))


def _refused(path: str, parameter: Parameter, space: Space, layers: Sequence[Layer]) -> list[str]:
    """Return a line for each value of one parameter that the method refuses."""
    said = {value: _why(path, value, space, layers) for value in parameter.probes()}
    lines = [why for why in said.values() if why]
    if isinstance(parameter, Uniform) and lines and not any(map(said.get, parameter.limits)):
        return [f"{line} For whole numbers write `int`." for line in lines]
    return lines


def _why(path: str, value: Scalar, space: Space, layers: Sequence[Layer]) -> str:
    """Return why the method refuses a value, "" if it takes it."""
    params = {**space.leading_to(path), path: value}
    try:
        config, _ = resolve([*layers, layer(params, space.origins)])
    except ConfigError as error:
        return str(error)
    taken = leaves(config.tree()).get(path)
    if taken == value:
        return ""
    place = space.origins[path]
    return f"`{path}` is read as {taken!r} where the space says {value!r} ({place}): write that."
