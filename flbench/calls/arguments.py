"""Arguments of the functions of `fl` as layers of the configuration."""

import os
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from flbench.config import trust
from flbench.config.schema import Config
from flbench.config.sources import NAMED_SECTIONS, Layer, from_file, from_values
from flbench.core.errors import ConfigError, UserError

DEFAULTS: Final = {"tracking": {"mlflow": False}}
"""Defaults in which a call from Python differs from the command line: see `fl.run`."""
DEFAULT_ORIGIN: Final = "default of fl."
"""Beginning of the origin of these defaults."""


def layers(
    function: str,
    config: str | PathLike[str] | None,
    arguments: Mapping[str, Any],
) -> list[Layer]:
    """Return the layers of one run, from the lowest to the highest: defaults, file, arguments.

    Args:
        function: Name of the function that the user called, for the origin of the values.
        config: Configuration file; None for none.
        arguments: Sections and keys of the configuration. Sections that are None are left out; a
            key by its dotted name may be None, which is YAML's null.

    Raises:
        ConfigError: The file cannot be read, or an argument has a type that no section can have.
    """
    origin = f"argument of fl.{function}"
    given = {
        name: plain(value, name, origin)
        for name, value in arguments.items()
        if value is not None or "." in name
    }
    found = [from_values(DEFAULTS, f"{DEFAULT_ORIGIN}{function}")]
    if config is not None:
        file = path_of(config, "config")
        found.append(from_file(file))
        trust.check(file, found[-1].tree)
    return [*found, from_values(given, origin)]


def sections(values: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a call that belong to the configuration.

    >>> sections({"trials": 4, "seed": 1, "data": "digits"}, {"train.rounds": 5})
    {'seed': 1, 'data': 'digits', 'train.rounds': 5}
    """
    return {name: values[name] for name in Config.model_fields if name in values} | dict(keys)


def path_of(path: str | PathLike[str], name: str) -> Path:
    """Return an argument as a path.

    Raises:
        UserError: It is empty, or is not a path.
    """
    if not isinstance(path, str | PathLike):
        raise UserError(f"`{name}` must be a path, got {type(path).__name__}.")
    if not fspath(path):
        raise UserError(f"`{name}` is empty. Give a path.")
    return Path(os.path.expanduser(path))


def plain(value: Any, path: str, origin: str) -> Any:
    """Return a value as YAML has it: dicts, lists and scalars; nothing of the user's is aliased.

    A partition becomes its section. `path`, its dotted key, and `origin` are for the error message.

    Raises:
        ConfigError: The value is something else, such as a function.
    """
    if hasattr(value, "section"):
        value = value.section()
    if isinstance(value, Mapping):
        return {key: plain(item, f"{path}.{key}", origin) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item, path, origin) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    names = " or a name" if path in NAMED_SECTIONS else ""
    raise ConfigError(
        f"`{path}` must be a value of YAML: a number, a text, a list, a dict of keys{names}; got an"
        f" object of type {type(value).__name__} ({origin})."
    )
