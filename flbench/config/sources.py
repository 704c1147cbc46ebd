"""Layers of configuration values, read from YAML files or from `key=value` overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from flbench.config.schema import Config
from flbench.config.typed import BLANKS, value_of, wrong_word
from flbench.core import files
from flbench.core.errors import ConfigError
from flbench.core.plain_yaml import PlainYamlError, parse

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 20  # parts of a dotted key
NAMED_SECTIONS: Final = {
    "algorithm": "name",
    "data": "name",
    "engine": "name",
    "model": "name",
    "partition": "scheme",
    "train.optimizer": "name",
    "train.schedule": "name",
}
"""Sections that can be given by one key alone, such as `algorithm: fedprox`, with that key."""
OPTIONAL_SECTIONS: Final = ("model.args", "partition.args")
"""Sections that may be null, as config.yaml writes them without entries."""


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

    Only plain values are accepted; tags that create Python objects are refused. A section without
    keys, such as a line `train:` with nothing below it, has its defaults. A key at the top level
    may be dotted, such as `train.rounds: 5`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, is too large, is not YAML of plain values (see
            `flbench.core.plain_yaml`), or its top level is not a mapping. The message names the
            file and, if known, the line.
    """
    try:
        text = files.read_text(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error.strerror}. Name a YAML file."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration {path} is not UTF-8 text. Save it as UTF-8."
        ) from error
    try:
        tree, lines = parse(text)
    except PlainYamlError as error:
        where = path if error.line is None else f"{path}:{error.line}"
        raise ConfigError(f"{where}: {error}") from error
    if tree is None:
        return Layer({})
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must contain keys with values, like `seed: 1`.")
    origins = {dotted: f"{path}:{line}" for dotted, line in lines.items()}
    if any("." in key for key in tree):
        tree, given = _without_dots(tree, origins)
        origins = given | {key: place for key, place in origins.items() if key in given}
    _drop_empty_sections(tree, Config)
    if (found := wrong_word(tree, text, lines)) is not None:
        raise ConfigError(f"{path}:{lines.get(found[0], 1)}: `{found[0]}` {found[1]}")
    return Layer(_expand_names(tree, origins), origins)


def _without_dots(
    tree: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values with sections in the place of dotted keys, and the origins of the values.

    Args:
        tree: The values; keys at the top level, such as `train.rounds`, may be dotted.
        places: File and line of each key by its dotted path.

    Raises:
        ConfigError: A value is given twice, or a key has a value and is a section.
    """
    layers: list[Layer] = []
    for key, value in tree.items():
        layer = from_values({key: value}, places[key])
        for name in leaves(layer.tree):
            if any(has_value(other.tree, name) for other in layers):
                raise ConfigError(f"`{name}` is given twice ({places[key]}). Give it once.")
        layers.append(layer)
    return merge(layers)


def _drop_empty_sections(tree: dict[str, Any], schema: type[BaseModel]) -> None:
    """Remove the sections of a schema that are null, at all depths, in place."""
    for name, info in schema.model_fields.items():
        section = info.annotation
        if name not in tree or not (isinstance(section, type) and issubclass(section, BaseModel)):
            continue
        if tree[name] is None:
            del tree[name]
        elif isinstance(tree[name], dict):
            _drop_empty_sections(tree[name], section)


def from_overrides(items: Sequence[str], origin: str = "command line") -> Layer:
    """Read overrides such as `train.rounds=100`.

    Args:
        items: Items `KEY=VALUE`: a dotted key and a value, such as `5`, `[0.5, 0, 0.5]` or `null`;
            see `flbench.config.typed`. A later item overrides an earlier one.
        origin: Origin of the values, for error messages and config.yaml.

    Raises:
        ConfigError: An item has no `=` or no key, or its value is empty, ambiguous or not valid.

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
        # White space before and after the sign belongs together: `key = value`.
        spaced = dotted != dotted.rstrip(BLANKS)
        tree: Any = from_text(dotted.strip(), text.lstrip(BLANKS) if spaced else text, origin)
        for key in reversed(keys):
            tree = {key: tree}
        origins = dict.fromkeys((dotted.strip(), *leaves(tree)), origin)
        layers.append(Layer(_expand_names(tree, origins), origins))
    return Layer(*merge(layers))


def from_text(dotted: str, text: str, origin: str) -> Any:
    """Return the value that a user types for a key; see `flbench.config.typed`.

    Args:
        dotted: The dotted key.
        text: What the user types.
        origin: Where it is typed, for error messages.

    Raises:
        ConfigError: The key has too many parts, or the value is empty, ambiguous or not valid.
    """
    keys = dotted.split(".")
    if len(keys) > MAX_DEPTH:
        raise ConfigError(
            f"`{dotted}` ({origin}) has {len(keys):,} parts; no key has more than {MAX_DEPTH}."
            " Correct the key."
        )
    try:
        return value_of(keys, text)
    except PlainYamlError as error:
        raise ConfigError(f"the value of `{dotted}` ({origin}) cannot be read: {error}") from error


def from_values(values: Mapping[str, Any], origin: str) -> Layer:
    """Return a layer of values that a program gives, instead of a file or a command line.

    Args:
        values: Values by key. A key may be dotted, such as `train.rounds`. A section is a mapping,
            or its name where it has one (`NAMED_SECTIONS`).
        origin: Origin of the values, for error messages and config.yaml.

    >>> from_values({"algorithm": "fedprox", "train.rounds": 20}, "script").tree
    {'algorithm': {'name': 'fedprox'}, 'train': {'rounds': 20}}
    """
    layers = []
    for dotted, value in values.items():
        tree: Any = value
        for key in reversed(str(dotted).split(".")):
            tree = {key: tree}
        origins = dict.fromkeys((str(dotted), *leaves(tree)), origin)
        layers.append(Layer(_expand_names(tree, origins), origins))
    return Layer(*merge(layers))


def is_line(origin: str) -> bool:
    """Return whether an origin is a line of a file."""
    return re.search(r":\d+$", origin) is not None


def folder_of(out: Path, usual: Path, layer: Layer) -> Path:
    """Return the folder for a study or a comparison: `output.dir` if it is given in place of `out`.

    Args:
        out: The folder that was asked for.
        usual: The folder if none was asked for.
        layer: Configuration values. A file names the folder of other runs, so its value is not it.

    >>> layer = from_overrides(["output.dir=results"])
    >>> [folder_of(Path(out), Path("studies"), layer).name for out in ("studies", "mine")]
    ['results', 'mine']
    """
    origin = layer.origins.get("output.dir", "default")
    given = out == usual and origin != "default" and not is_line(origin)
    return Path(value_at(layer.tree, "output.dir")).expanduser() if given else out


def leaves(
    tree: dict[str, Any], prefix: str = "", *, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the values of nested dicts by their dotted paths.

    Args:
        tree: Nested dicts.
        prefix: Beginning of every path.
        without: Beginnings of paths that are left out.

    >>> leaves({"train": {"rounds": 5, "optimizer": {"lr": 0.1}}})
    {'train.rounds': 5, 'train.optimizer.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        flat |= leaves(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return {path: value for path, value in flat.items() if not path.startswith(without)}


def value_at(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, whose numbers are indices of lists.

    Args:
        tree: Nested dicts and lists.
        path: The dotted path.

    Raises:
        KeyError: There is no such value.

    >>> value_at({"train": {"terms": [{"name": "focal", "weight": 0.5}]}}, "train.terms.0.weight")
    0.5
    """
    part: Any = tree
    for key in path.split("."):
        is_index = isinstance(part, list | tuple) and key.isdecimal() and int(key) < len(part)
        if not is_index and not (isinstance(part, Mapping) and key in part):
            raise KeyError(path)
        part = part[int(key)] if is_index else part[key]
    return part


def has_value(tree: Mapping[str, Any], path: str) -> bool:
    """Return whether there is a value at a dotted path; see `value_at`."""
    try:
        value_at(tree, path)
    except KeyError:
        return False
    return True


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers into nested dicts of values and a dict of their origins.

    Values of later layers override those of earlier ones. If a layer selects another method or net
    than the layers before it (`algorithm.name`, `model.name`), the keys that those set in the
    section are dropped, because they belong to the method or net that is no longer selected. A key
    such as `train.terms.0.weight` overrides a value of an element of a list.

    Args:
        layers: The layers, in ascending priority.

    Raises:
        ConfigError: One layer has keys where another one has a value that is not a section, or a
            list has no such element.
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
        above = _with_elements(tree, layer.tree, layer.origins)
        _check_sections(tree, above, origins, layer.origins)
        _merge_into(tree, above)
        origins |= layer.origins
    return tree, origins


def _with_elements(
    below: Mapping[str, Any], above: Mapping[str, Any], origins: dict[str, str], prefix: str = ""
) -> dict[str, Any]:
    """Return values with whole lists where they name elements of a list below by their numbers."""
    found: dict[str, Any] = {}
    for key, value in above.items():
        path, old = f"{prefix}{key}", below.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            value = _with_elements(old, value, origins, f"{path}.")
        elif isinstance(old, list | tuple) and _names_elements(value):
            value = _changed(old, value, origins, path)
        found[key] = value
    return found


def _names_elements(value: object) -> bool:
    """Whether a value is a section whose keys are numbers, such as `{"0": {"weight": 2}}`."""
    return isinstance(value, dict) and bool(value) and all(str(key).isdecimal() for key in value)


def _changed(
    old: Sequence[Any], changes: Mapping[str, Any], origins: dict[str, str], path: str
) -> list[Any]:
    """Return a list with changed elements; an element given by its name alone becomes a section.

    Raises:
        ConfigError: There is no such element.
    """
    new = list(old)
    for number, change in changes.items():
        index = int(number)
        if index >= len(new):
            place = next((p for n, p in origins.items() if n.startswith(f"{path}.{number}")), "")
            raise ConfigError(
                f"`{path}.{number}` ({place}) does not exist: `{path}` has {len(new)} elements,"
                " which are counted from 0."
            )
        if not isinstance(change, dict):
            new[index] = change
            continue
        element = {"name": new[index]} if isinstance(new[index], str) else new[index]
        merged: dict[str, Any] = {}
        _merge_into(merged, element if isinstance(element, dict) else {})
        _merge_into(merged, change)
        new[index] = merged
    return new


def _check_sections(
    below: dict[str, Any],
    above: dict[str, Any],
    origins_below: dict[str, str],
    origins_above: dict[str, str],
    prefix: str = "",
) -> None:
    """Raise a ConfigError if a key has keys below it in one tree, and a value in the other."""
    for key in (key for key in below if key in above):
        path, values = f"{prefix}{key}", (below[key], above[key])
        kinds = [isinstance(value, dict) for value in values]
        if all(kinds):
            _check_sections(*values, origins_below, origins_above, f"{path}.")
        elif any(kinds) and not (path in OPTIONAL_SECTIONS and values[0] is None):
            value, origins = (values[0], origins_below) if kinds[1] else (values[1], origins_above)
            section = origins_above if kinds[1] else origins_below
            name = next((name for name in section if name.startswith(f"{path}.")), path)
            raise ConfigError(
                f"`{path}` has the value {value!r} ({origins.get(path, 'unknown origin')}), but"
                f" `{name}` ({section.get(name, 'unknown origin')}) makes it a section. Remove one"
                " of the two."
            )


def _merge_into(below: dict[str, Any], above: dict[str, Any]) -> None:
    """Override values of nested dicts by those of others, in place, without aliasing the latter."""
    for key, value in above.items():
        if isinstance(value, dict):
            if below.get(key) is None:
                below[key] = {}
            _merge_into(below[key], value)
        else:
            below[key] = value


def _expand_names(tree: dict[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    """Expand a section given by its name, `algorithm: fedprox`, to `{name: fedprox}`, in place."""
    for path, inner in NAMED_SECTIONS.items():
        *above, key = path.split(".")
        part: Any = tree
        for name in above:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(part.get(key), str):
            part[key] = {inner: part[key]}
            origins[f"{path}.{inner}"] = origins.pop(path)
    return tree
