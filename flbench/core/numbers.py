"""Checks of the numbers that users give as options or arguments."""

from typing import Any

from flbench.core.errors import ConfigError
from flbench.core.wording import setting


def check_whole(name: str, value: Any, least: int) -> None:
    """Check a whole number.

    Args:
        name: Name of the setting, as `flbench.core.wording.setting` takes it.
        value: What the user has given.
        least: Smallest number that is accepted.

    Raises:
        ConfigError: It is no whole number, or a smaller one.

    >>> check_whole("trials", 0, 1)
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `trials` must be a whole number of at least 1, got 0.
    """
    if type(value) is not int or value < least:
        raise ConfigError(
            f"{setting(name)} must be a whole number of at least {least}, got {value!r}."
        )
