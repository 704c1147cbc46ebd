"""Names of arguments that a user has misspelt."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

from flbench.config.schema import Config
from flbench.core.errors import ConfigError


def check_names(function: Callable[..., Any], keys: Iterable[str]) -> None:
    """Refuse further keys of a call that look like misspelt arguments of the function.

    Unknown keys that look like sections are refused when the configuration is resolved.

    Args:
        function: The function that the user called, such as `fl.tune`.
        keys: Names of its further keyword arguments.

    Raises:
        ConfigError: A key is not a section of the configuration, and an argument has a similar
            name.

    >>> def tune(methods, trials=None, **keys): ...
    >>> check_names(tune, ["trails"])
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `trails` is not an argument of fl.tune. Did you mean `trials`?
    """
    parameters, sections = signature(function).parameters.values(), Config.model_fields
    known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    for key in (one for one in keys if one not in sections):
        close = get_close_matches(key, [*known, *sections], n=1)
        if close and close[0] not in sections:
            raise ConfigError(
                f"`{key}` is not an argument of fl.{function.__name__}. Did you mean `{close[0]}`?"
            )
