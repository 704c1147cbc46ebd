"""Layers of configuration values, read from YAML files or from `key=value` overrides."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from flbench.core import files
from flbench.core.errors import ConfigError
from flbench.core.plain_yaml import PlainYamlError, parse, scalar

MAX_BYTES: Final = 1_000_000
DEFAULT: Final = "default"
"""Origin of the values that nobody has given."""
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
FREE: Final = ("model.args.", "partition.args.", "train.terms.")
"""Beginnings of the keys whose values may be texts, numbers or booleans."""


class Given(NamedTuple):
    """A value and its origin, such as `my.yaml:3`."""

    value: Any
    origin: str


class Layer(dict[str, Given]):
    """Configuration values by dotted key. No value is a dict, except an empty one.

    Args:
        tree: The values, nested or by dotted keys. A section may be its name alone, such as
            `{"algorithm": "fedprox"}`.
        origins: Origin of each value by its dotted key, or by that of its section.

    Raises:
        ConfigError: A key is given twice.
    """

    def __init__(
        self, tree: Mapping[str, Any] | None = None, origins: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        for key, value in _flat(tree or {}):
            one = Given(value, origin_of(key, origins or {}))
            if key in self:
                raise ConfigError(f"`{key}` is given twice ({one.origin}). Give it once.")
            self._put(key, one)

    @property
    def tree(self) -> dict[str, Any]:
        """The values as nested dicts."""
        tree: dict[str, Any] = {}
        for key, one in self.items():
            *above, last = key.split(".")
            part = tree
            for name in above:
                part = part.setdefault(name, {})
            part[last] = one.value
        return tree

    @property
    def origins(self) -> dict[str, str]:
        """The origins of the values that somebody has given."""
        return {key: one.origin for key, one in self.items() if one.origin != DEFAULT}

    def written(self) -> dict[str, dict[str, Any]]:
        """Return the arguments that make an equal layer, as values of JSON."""
        return {"tree": self.tree, "origins": self.origins}

    def where(self, keep: Callable[[str], bool]) -> "Layer":
        """Return a layer with those of the values whose keys are kept."""
        found = Layer()
        found.update({key: one for key, one in self.items() if keep(key)})
        return found

    def _put(self, key: str, new: Given) -> None:
        """Set a value, or one of an element of a list, in place of the values above and below."""
        if key in self:
            self[key] = new
            return
        for above in _above(key):
            old = self.get(above, new).value
            if above in self and isinstance(old, list | tuple):
                self[above] = Given(_with_element(above, old, key, new), new.origin)
                return
            self.pop(above, None)
        start = f"{key}."
        below = [one for one in self if one.startswith(start)]
        if below and new.value == {}:
            return
        for one in below:
            del self[one]
        self[key] = new


def from_file(path: Path) -> Layer:
    """Read a configuration from a YAML file; see `read_file` and `Layer`.

    A section without keys, such as a line `train:` with nothing below it, has its defaults. Keys
    may be dotted, such as `train.rounds: 5`.
    """
    return Layer(*read_file(path))


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a YAML file of plain values; see `flbench.core.plain_yaml`.

    Returns:
        The values as nested dicts, and the file and line of each key by its dotted path.

    Raises:
        ConfigError: The file cannot be read, is too large, is not plain YAML, or its top level is
            not a mapping. The message names the file and, if known, the line.
    """
    try:
        tree, lines = parse(files.read_text(path, MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "it is not UTF-8")
        raise ConfigError(
            f"the configuration {path} cannot be read: {reason}. Name a YAML file in UTF-8."
        ) from error
    except PlainYamlError as error:
        where = path if error.line is None else f"{path}:{error.line}"
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path} must contain keys with values, like `seed: 1`.")
    return tree or {}, {key: f"{path}:{line}" for key, line in lines.items()}


def from_overrides(items: Sequence[str], origin: str = "command line") -> Layer:
    """Read overrides such as `train.rounds=100`.

    Args:
        items: Items `KEY=VALUE`: a dotted key and a value; see `value_of`. A later item overrides
            an earlier one.
        origin: Origin of the values, for error messages and config.yaml.

    Raises:
        ConfigError: An item has no `=` or no key, or its value cannot be read.

    >>> from_overrides(["train.rounds=20", "algorithm=fedprox"]).tree
    {'train': {'rounds': '20'}, 'algorithm': {'name': 'fedprox'}}
    """
    layers = []
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not all(key.strip().split(".")):
            raise ConfigError(
                f"`{item}` ({origin}) must have the form key=value, for example train.rounds=100."
            )
        layers.append(from_values({key.strip(): value_of(key.strip(), text, origin)}, origin))
    return merge(layers)


def value_of(key: str, text: str, origin: str) -> Any:
    """Return the value that a user types for a key.

    A list and a section are written as in YAML, such as `[0.5, 0, 0.5]`, and none is `null`. Any
    other text stays as it is, because its type is that of the key; only a key without a type, such
    as an argument of the user's own net, takes the scalars of YAML 1.2.

    Args:
        key: The dotted key.
        text: What the user types.
        origin: Where it is typed, for error messages.

    Raises:
        ConfigError: The text is empty, or is no YAML.

    >>> value_of("data.label", "#visits", ""), value_of("model.args.width", "8", "")
    ('#visits', 8)
    """
    word = text.strip()
    if not word:
        raise ConfigError(f"`{key}` ({origin}) is empty. Give a value, or null for none.")
    if word in ("null", "~"):
        return None
    if word[0] in "[{" or (word[0] in "'\"" and word[0] == word[-1]):
        return _parsed(key, word, origin)
    return scalar(word) if key.startswith(FREE) else word


def values_of(key: str, text: str, origin: str) -> list[Any]:
    """Return the values that a user types for a key, separated by commas; see `value_of`.

    >>> values_of("algorithm.mu", "0.1, [1, 2], 'a, b'", "--grid")
    [0.1, [1, 2], 'a, b']
    """
    found: list[Any] = _parsed(key, f"[{text}]", origin)
    return found


def _parsed(key: str, text: str, origin: str) -> Any:
    """Return the value of a YAML text that a user types for a key."""
    try:
        return parse(text)[0]
    except PlainYamlError as error:
        raise ConfigError(f"the value of `{key}` ({origin}) cannot be read: {error}") from error


def from_values(values: Mapping[str, Any], origin: str) -> Layer:
    """Return a layer of values that a program gives, instead of a file or a command line.

    Args:
        values: Values by key; see `Layer`. A later one overrides an earlier one.
        origin: Origin of the values, for error messages and config.yaml.

    >>> from_values({"algorithm": "fedprox", "train.rounds": 20}, "script").tree
    {'algorithm': {'name': 'fedprox'}, 'train': {'rounds': 20}}
    """
    return merge([Layer({key: value}, {str(key): origin}) for key, value in values.items()])


def merge(layers: Sequence[Layer]) -> Layer:
    """Return layers as one.

    Values of later layers override those of earlier ones. If a layer selects another method or net
    than the layers before it (`algorithm.name`, `model.name`), the keys that those set in the
    section are dropped, because they belong to the method or net that is no longer selected. A key
    such as `train.terms.0.weight` overrides a value of an element of a list.

    Raises:
        ConfigError: A list has no such element.
    """
    found = Layer()
    for layer in layers:
        for section in ("algorithm.", "model."):
            old, new = found.get(f"{section}name"), layer.get(f"{section}name")
            if old is not None and new is not None and old.value != new.value:
                for key in [key for key in found if key.startswith(section)]:
                    del found[key]
        for key, one in layer.items():
            found._put(key, one)
    return found


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of a key, or else that of the nearest section above it."""
    return next((origins[one] for one in (key, *_above(key)) if one in origins), DEFAULT)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted keys and the values of nested dicts; see `Layer`."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{key}.")
        elif key in NAMED_SECTIONS and isinstance(value, str):
            found.append((f"{key}.{NAMED_SECTIONS[key]}", value))
        else:
            found.append((key, value))
    return found


def _above(key: str) -> list[str]:
    """Return the sections that a key is in, the innermost first."""
    parts = key.split(".")
    return [".".join(parts[:k]) for k in range(len(parts) - 1, 0, -1)]


def _with_element(name: str, old: Sequence[Any], key: str, new: Given) -> list[Any]:
    """Return a list with another element, or with another value in an element.

    An element that is given by its name alone becomes a section.
    """
    items, (number, _, rest) = list(old), key.removeprefix(f"{name}.").partition(".")
    if not number.isdecimal() or int(number) >= len(items):
        raise ConfigError(
            f"`{key}` ({new.origin}) does not exist: `{name}` has {len(items)} elements, which are"
            " counted from 0."
        )
    item = items[int(number)]
    item = {"name": item} if rest and isinstance(item, str) else item
    items[int(number)] = {**item, rest: new.value} if rest else new.value
    return items


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
    given = layer.get("output.dir", Given(None, DEFAULT))
    if out != usual or given.origin == DEFAULT or is_line(given.origin):
        return out
    return Path(os.path.expanduser(given.value))


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

    Raises:
        LookupError: There is no such value.

    >>> value_at({"train": {"terms": [{"name": "focal", "weight": 0.5}]}}, "train.terms.0.weight")
    0.5
    """
    part: Any = tree
    for key in path.split("."):
        part = part[int(key)] if isinstance(part, list | tuple) else part[key]
    return part


def has_value(tree: Mapping[str, Any], path: str) -> bool:
    """Return whether there is a value at a dotted path; see `value_at`."""
    try:
        value_at(tree, path)
    except (LookupError, ValueError, TypeError):
        return False
    return True
