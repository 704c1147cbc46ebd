"""Layers of configuration: a YAML file with line numbers, and `key=value` from the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from flbench.core.errors import ConfigError

MAX_BYTES: Final = 1_000_000
MAX_VALUES: Final = 10_000
NAMED_SECTIONS: Final = ("algorithm", "model", "engine", "train.optimizer", "train.schedule")
"""Sections that a bare name stands for."""


@dataclass(frozen=True)
class Layer:
    """Nested dicts of values, and where each value came from by its dotted path."""

    tree: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)


def from_file(path: Path) -> Layer:
    """Read a YAML file; only plain data are read, never code.

    Raises: ConfigError with the file and the line if it cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_BYTES:,} bytes: this is no configuration."
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not a text in UTF-8.") from error
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Layer({})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}:{node.start_mark.line + 1} must hold keys and values, like `seed: 1`."
            )
        origins: dict[str, str] = {}
        for count, (dotted, line) in enumerate(_lines(node, str(path))):
            if count >= MAX_VALUES:
                raise ConfigError(
                    f"{path} holds more than {MAX_VALUES:,} values: this is no configuration."
                )
            origins[dotted] = f"{path}:{line}"
        return Layer(_expand_names(loader.construct_document(node), origins), origins)
    except yaml.YAMLError as error:
        raise ConfigError(f"{_where(error, path)}: {_what(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply: this is no configuration.") from error
    finally:
        loader.dispose()


def from_overrides(items: Sequence[str], origin: str = "command line") -> Layer:
    """Read `train.rounds=100`-like items; values are YAML (`[0.5, 0, 0.5]`, `null`, `1e-3`).

    Raises: ConfigError for an item without `=`, without a key, or with a value that is not YAML.
    """
    layers = []
    for item in items:
        dotted, sign, text = item.partition("=")
        keys = dotted.strip().split(".")
        if not sign or not all(keys):
            raise ConfigError(
                f"`{item}` ({origin}) must look like key=value, for example train.rounds=100."
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
    """Return the values of nested dicts by their dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        flat |= leaves(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the nested dicts and origins of all layers, later ones over earlier ones.

    Where a layer names another method or net than the layers below it (`algorithm.name`,
    `model.name`), their keys of that section belong to the other one and are left out.
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
    for key, value in above.items():
        if isinstance(value, dict):
            there = below.get(key)
            below[key] = dict(there) if isinstance(there, dict) else {}
            _merge_into(below[key], value)
        else:
            below[key] = value


def _expand_names(tree: dict[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    """Read a bare name where keys are expected, `algorithm: fedprox`, as `{name: fedprox}`."""
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
    """Yield the dotted path and line of every value; a key that stands twice is an error."""
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{path}:{line}: a key must be a word, got `{prefix}{name}`.")
        if name in seen:
            raise ConfigError(
                f"{path}:{line}: the key `{prefix}{name}` stands twice. Remove one of the two."
            )
        seen.add(name)
        yield f"{prefix}{name}", line
        if isinstance(value, yaml.MappingNode):
            yield from _lines(value, path, f"{prefix}{name}.")


def _where(error: yaml.YAMLError, path: Path) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}" if mark is not None else str(path)


def _what(error: yaml.YAMLError) -> str:
    if "unhashable" in str(error):
        return "a key must be a word."
    if isinstance(error, yaml.constructor.ConstructorError):
        return f"{error.problem}. Only plain values are read, never code."
    return f"{getattr(error, 'problem', None) or error}."
