"""Names of arguments that a user has misspelt."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from flbench.config.schema import Config
from flbench.core.errors import ConfigError


def check_names(
    function: Callable[..., Any], keys: Iterable[str], *others: Callable[..., Any]
) -> None:
    """Refuse further keys of a call that look like misspelt arguments of the function.

    Unknown keys that look like sections are refused when the configuration is resolved.

    Args:
        function: The function that the user called, such as `fl.tune`.
        keys: Names of its further keyword arguments.
        others: Functions whose arguments it takes besides its own.

    Raises:
        ConfigError: A key is not a section of the configuration, and an argument has a similar
            name.

    >>> def tune(methods, trials=None, **keys): ...
    >>> check_names(tune, ["trails"])
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `trails` is not an argument of fl.tune. Did you mean `trials`?
    """
    sections = set(Config.model_fields)
    names = [
        name
        for one in (function, *others)
        for name, parameter in signature(one).parameters.items()
        if parameter.kind is not Parameter.VAR_KEYWORD
    ]
    for key in keys:
        close = get_close_matches(key, [*names, *sections], n=1)
        if key not in sections and close and close[0] not in sections:
            raise ConfigError(
                f"`{key}` is not an argument of fl.{function.__name__}. Did you mean `{close[0]}`?"
            )
