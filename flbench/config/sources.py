"""Layers of configuration values, read from YAML files or from `key=value` overrides."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from flbench.core.errors import ConfigError

MAX_BYTES: Final = 1_000_000
MAX_VALUES: Final = 10_000
NAMED_SECTIONS: Final = ("algorithm", "model", "engine", "train.optimizer", "train.schedule")
"""Sections that can be given by their key `name` alone: `algorithm: fedprox`."""


@dataclass(frozen=True)
class Layer:
    """Configuration values from one source.

    Attributes:
        tree: The values as nested dicts.
        origins: Origin of each value by its dotted path, such as `my.yaml:3`.
    """

    tree: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)


def from_file(path: Path) -> Layer:
    """Read a configuration from a YAML file.

    Only plain values are accepted; tags that create Python objects are refused.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, is too large or not valid YAML, has a key twice, or
            its top level is not a mapping. The message names the file and, if known, the line.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_BYTES:,} bytes, too large for a configuration."
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration {path} is not UTF-8 text. Save it as UTF-8."
        ) from error
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Layer({})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}:{node.start_mark.line + 1} must contain keys with values, like `seed: 1`."
            )
        origins: dict[str, str] = {}
        for count, (dotted, line) in enumerate(_lines(node, str(path))):
            if count >= MAX_VALUES:
                raise ConfigError(
                    f"{path} has more than {MAX_VALUES:,} values, too many for a configuration."
                )
            origins[dotted] = f"{path}:{line}"
        return Layer(_expand_names(loader.construct_document(node), origins), origins)
    except yaml.YAMLError as error:
        raise ConfigError(f"{_where(error, path)}: {_what(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply for a configuration.") from error
    finally:
        loader.dispose()


def from_overrides(items: Sequence[str], origin: str = "command line") -> Layer:
    """Read overrides such as `train.rounds=100`.

    Args:
        items: Items `KEY=VALUE`: a dotted key and a value in YAML, such as `[0.5, 0, 0.5]` or
            `null`. A later item overrides an earlier one.
        origin: Origin of the values, for error messages and config.yaml.

    Raises:
        ConfigError: An item has no `=` or no key, or its value is not valid YAML.

    >>> layer = from_overrides(["train.rounds=20", "algorithm=fedprox"])
    >>> layer.tree
    {'train': {'rounds': 20}, 'algorithm': {'name': 'fedprox'}}
    >>> layer.origins["train.rounds"]
    'command line'
    """
    layers = []
    for item in items:
        dotted, sign, text = item.partition("=")
        keys = dotted.strip().split(".")
        if not sign or not all(keys):
            raise ConfigError(
                f"`{item}` ({origin}) must have the form key=value, for example train.rounds=100."
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"the value of `{dotted}` ({origin}) cannot be read: {_what(error)}"
            ) from error
        tree: Any = value
        for key in reversed(keys):
            tree = {key: tree}
        origins = dict.fromkeys((dotted.strip(), *leaves(tree)), origin)
        layers.append(Layer(_expand_names(tree, origins), origins))
    return Layer(*merge(layers))


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by their dotted paths.

    Args:
        tree: Nested dicts.
        prefix: Beginning of every path.

    >>> leaves({"train": {"rounds": 5, "optimizer": {"lr": 0.1}}})
    {'train.rounds': 5, 'train.optimizer.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        flat |= leaves(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers into nested dicts of values and a dict of their origins.

    Values of later layers override those of earlier ones. If a layer selects another method or net
    than the layers before it (`algorithm.name`, `model.name`), the keys that those set in the
    section are dropped, because they belong to the method or net that is no longer selected.

    Args:
        layers: The layers, in ascending priority.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for section in ("algorithm", "model"):
            below, above = tree.get(section), layer.tree.get(section)
            if not (isinstance(below, dict) and isinstance(above, dict)):
                continue
            if "name" in above and "name" in below and above["name"] != below["name"]:
                tree.pop(section)
                origins = {
                    path: place
                    for path, place in origins.items()
                    if not path.startswith(f"{section}.")
                }
        _merge_into(tree, layer.tree)
        origins |= layer.origins
    return tree, origins


def _merge_into(below: dict[str, Any], above: dict[str, Any]) -> None:
    """Override values of nested dicts by those of others, in place, without aliasing the latter."""
    for key, value in above.items():
        if isinstance(value, dict):
            there = below.get(key)
            below[key] = dict(there) if isinstance(there, dict) else {}
            _merge_into(below[key], value)
        else:
            below[key] = value


def _expand_names(tree: dict[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    """Expand a section given by its name, `algorithm: fedprox`, to `{name: fedprox}`, in place."""
    for path in NAMED_SECTIONS:
        *above, key = path.split(".")
        part: Any = tree
        for name in above:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(part.get(key), str):
            part[key] = {"name": part[key]}
            origins[f"{path}.name"] = origins.pop(path)
    return tree


def _lines(node: yaml.MappingNode, path: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the dotted path and line number of every key of a YAML mapping.

    Raises:
        ConfigError: A key is not a string, or a mapping has a key twice.
    """
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{path}:{line}: a key must be a word, got `{prefix}{name}`.")
        if name in seen:
            raise ConfigError(
                f"{path}:{line}: the key `{prefix}{name}` appears twice. Remove one of the two."
            )
        seen.add(name)
        yield f"{prefix}{name}", line
        if isinstance(value, yaml.MappingNode):
            yield from _lines(value, path, f"{prefix}{name}.")


def _where(error: yaml.YAMLError, path: Path) -> str:
    """Return the file and, if the error has one, the line of a YAML error."""
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}" if mark is not None else str(path)


def _what(error: yaml.YAMLError) -> str:
    """Return the description of a YAML error, as the end of a sentence."""
    if "unhashable" in str(error):
        return "a key must be a word."
    if isinstance(error, yaml.constructor.ConstructorError):
        return f"{error.problem}. Only plain values are accepted, no Python objects."
    return f"{getattr(error, 'problem', None) or error}."
