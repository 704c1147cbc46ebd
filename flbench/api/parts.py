"""Parts of the user's own, as arguments of `fl.run` and `fl.resume`: data and nets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file
from flbench.core import imported
from flbench.core.errors import ConfigError
from flbench.core.given import OBJECT
from flbench.data.own import Data, is_own


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments with sections in the place of objects, and the objects.

    A function or class that has an import path becomes that path.

    Args:
        arguments: Arguments by name; those named `data` and `model` may be objects.

    Returns:
        The arguments, and the objects without an import path by the name of their section.

    Raises:
        DataError: The data cannot be used.
    """
    plain = dict(arguments)
    objects: dict[str, Any] = {}
    data, model = plain.get("data"), plain.get("model")
    if is_own(data):
        path = imported.path_of(data) if callable(data) else None
        if path is not None:
            plain["data"] = {"source": path}
        else:
            data = data() if callable(data) else data
            found = data if isinstance(data, Data) else Data(data)
            objects["data"] = found
            plain["data"] = found.section()
    if isinstance(model, nn.Module) or (callable(model) and not isinstance(model, Mapping)):
        path = None if isinstance(model, nn.Module) else imported.path_of(model)
        plain["model"] = {"name": path or OBJECT}
        if path is None:
            objects["model"] = model
    elif isinstance(model, Mapping) and isinstance(model.get("name"), nn.Module | type):
        objects["model"] = model["name"]
        plain["model"] = {**model, "name": OBJECT}
    return plain, objects


def of_resume(path: Path, keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `fl.resume` without objects, and the objects.

    Args:
        path: The run folder.
        keys: Arguments by name.

    Raises:
        ConfigError: The run did not begin with an object.
        DataError: The data cannot be used.
    """
    plain, objects = split(keys)
    if objects and (path / "config.yaml").is_file():
        config: Config
        config, _ = resolve([from_file(path / "config.yaml")])
        began = {"data": config.data.source, "model": config.model.name}
        for section in objects:
            if began[section] != OBJECT:
                raise ConfigError(
                    f"`{section}` is an object, but {path} did not begin with one. Leave it out:"
                    " the run finds it by its configuration."
                )
    return {key: value for key, value in plain.items() if key not in objects}, objects
