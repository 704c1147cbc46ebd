"""Defaults of keys that a function of the user brings: `model.args.NAME`, and keys of its terms."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from flbench.config.sources import has_value, value_at
from flbench.core import parts
from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.parameters import Scalar

ARGUMENTS: Final = "model.args"


def default_of(tree: Mapping[str, Any], path: str, method: str) -> Scalar:
    """Return the value of a key in a configuration, or the default of the function's argument.

    Args:
        tree: The configuration as nested dicts.
        path: The dotted key.
        method: Name of the method whose space has the key, for messages.

    Raises:
        ConfigError: The function has no such argument, or no default for it.
    """
    if has_value(tree, path):
        value: Scalar = value_at(tree, path)
        return value
    section, _, argument = path.rpartition(".")
    owner = "model" if section == ARGUMENTS else section
    name = value_at(tree, f"{owner}.name")
    function = parts.given(owner) if name == parts.OBJECT else parts.find(name)
    parameters = inspect.signature(function).parameters if callable(function) else {}
    what = f"`{path}` of the space of {method}"
    if argument not in parameters:
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            raise ConfigError(
                f"{what} has no value for the default trial: `{name}` takes it as one of any"
                f" arguments. Give `{argument}` a default of its own there."
            )
        raise ConfigError(
            f"{what}: `{name}` has no argument `{argument}`.{did_you_mean(argument, parameters)}"
            f" Its arguments: {', '.join(parameters) or 'none'}."
        )
    default = parameters[argument].default
    if not isinstance(default, str | int | float | None):
        raise ConfigError(
            f"{what} has no value for the default trial: the argument `{argument}` of `{name}` has"
            " no default that is a number or a word. Give it one."
        )
    return default
