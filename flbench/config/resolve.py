"""Merging and checking of configuration layers; all errors are reported together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from flbench.config import trust
from flbench.config.schema import (
    AS_DATA,
    AlgorithmConfig,
    Config,
    ModelConfig,
    TermConfig,
    method_class,
    net_class,
    term_class,
)
from flbench.config.sources import DEFAULT, Layer, from_file, from_values, leaves, merge, origin_of
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.text import MASK, redact

BOUNDS: Final = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}
"""pydantic's types of errors about bounds, with the name of the bound and the sign."""
BY_NAME: Final = {AlgorithmConfig: method_class, ModelConfig: net_class, TermConfig: term_class}
"""Sections whose keys depend on the name in them."""


def resolve(layers: Sequence[Layer]) -> tuple[Config, dict[str, str]]:
    """Merge layers of values and check the result.

    Args:
        layers: The layers, in ascending priority; see `flbench.config.sources`.

    Returns:
        The configuration, and the origin of each key by its dotted path: `default`, a file with a
        line number, or the command line.

    Raises:
        ConfigError: Keys are wrong; the message has one line for each of them.
    """
    layer = merge(layers)
    config = _checked(layer, None)
    return config, {key: origin_of(key, layer.origins) for key in leaves(config.tree())}


def as_data(layers: Sequence[Layer]) -> Config:
    """Merge layers of values that flbench has written, as data.

    No module of a method, net, loss term, metric or scheme is imported, so that the results of a
    run can be read where these are not installed, and without PyTorch. The keys of methods, nets
    and terms are taken as they are written; keys of flbench that do not exist any more are left
    out. Nothing can be built from the result: `resolve_written` makes a configuration for that.

    Args:
        layers: The layers, in ascending priority.

    Raises:
        ConfigError: Keys of flbench itself are wrong.
    """
    return _checked(merge(layers), AS_DATA)


def read(path: Path) -> Config:
    """Read a configuration file that flbench has written, as data; see `as_data`."""
    return as_data([from_file(path)])


def resolve_written(path: Path, *above: Layer) -> tuple[Config, dict[str, str]]:
    """Check a configuration that flbench has written, with the code that it names.

    Args:
        path: The file.
        above: Layers with a higher priority.

    Returns:
        See `resolve`.

    Raises:
        ConfigError: The method, the net or a loss term is not installed, keys are wrong, or the
            file names code that may not run; see `flbench.config.trust`.
    """
    layer = from_file(path)
    trust.check(path, layer.tree)
    return resolve([layer, *above])


def changed(config: Config) -> list[str]:
    """Return the dotted keys whose values differ from the defaults of their method and net.

    Args:
        config: A configuration whose method is installed or registered.
    """
    names = {"algorithm.name": config.algorithm.name, "model.name": config.model.name}
    defaults = leaves(resolve([from_values(names, "defaults")])[0].tree())
    return [key for key, value in leaves(config.tree()).items() if value != defaults.get(key)]


def _checked(layer: Layer, context: str | None) -> Config:
    """Return the configuration of a layer; see `resolve` and `as_data`."""
    tree = {"algorithm": {}, "model": {}, **layer.tree}
    try:
        # What flbench has recorded may have keys that it does not have any more.
        return Config.model_validate(
            tree, context=context, extra="ignore" if context == AS_DATA else None
        )
    except ValidationError as error:
        found: dict[str, list[Any]] = {}
        for item in error.errors():
            found.setdefault(_key(item, tree), []).append(item)
        lines = [_sentence(key, items, layer, tree) for key, items in found.items()]
        raise ConfigError("\n".join(lines)) from None


def _key(item: Any, tree: Any) -> str:
    """Return the dotted key of one of pydantic's errors.

    For a key that accepts several types, pydantic appends the type that it tried, and places in
    it; the key itself is enough.
    """
    parts: list[str] = []
    for part in item["loc"]:
        is_there = (
            isinstance(part, int) and part < len(tree)
            if isinstance(tree, list | tuple)
            else isinstance(tree, Mapping) and part in tree
        )
        if is_there:
            tree = tree[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            break
        parts.append(str(part))
    return ".".join(parts)


def _sentence(key: str, items: Sequence[Any], layer: Layer, tree: Any) -> str:
    """Return a sentence about a wrong key: its condition, its value, its origin and the cure.

    Args:
        key: The dotted key.
        items: pydantic's errors about it. There are several if the key accepts several types and
            its value has none of them.
        layer: All values.
        tree: The same as nested dicts.
    """
    item = items[0]
    kind, value, text = item["type"], item.get("input"), str(item["msg"])
    key = f"{key}.name" if kind == "sentence" else key
    place = _place(key, layer)
    if kind == "extra_forbidden":
        section, _, last = key.rpartition(".")
        known = list(_class_at(section, tree).model_fields)
        deeper = (f" Did you mean `{one}`?" for one in _keys(Config) if one.endswith(f".{last}"))
        hint = did_you_mean(last, known) or next(deeper, "")
        listed = f" Keys there: {', '.join(known)}."
        where = f"`{section}`" if section else "the configuration"
        return f"`{key}` is not a key of {where} ({place}).{hint or listed}"
    if kind == "missing":
        return f"`{key}` is missing ({place})."
    if kind == "sentence" or (kind == "value_error" and isinstance(value, Mapping)):
        return f"`{key}` ({place}): {text.removeprefix('Value error, ').rstrip('.')}."
    # A key that takes a section or a word has an error for each of them. Only the error of the kind
    # that the user has written helps.
    others = [one for one in items if one["type"] not in ("model_type", "none_required")] or items
    conditions = " or ".join(dict.fromkeys(map(_condition, others))).replace(" or be ", " or ")
    got = MASK if key == "tracking.uri" else redact(repr(value))  # an address may have a password
    hint = ""
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(item["ctx"]["expected"]))
        hint = did_you_mean(str(value), choices)
    return f"`{key}` must {conditions}, got {got} ({place}).{hint}"


def _condition(item: Any) -> str:
    """Return the condition of one of pydantic's errors, to follow "must"."""
    kind, context, text = item["type"], item.get("ctx", {}), str(item["msg"])
    if kind in BOUNDS:
        name, sign = BOUNDS[kind]
        return f"be {sign} {context[name]:g}"
    if kind == "tuple_type":
        return f"be a list, like [{redact(str(item['input']))}]"
    if kind in ("model_type", "path_type"):
        return "be a section with keys" if kind == "model_type" else "be a path"
    if kind == "value_error":
        return f"be {text.removeprefix('Value error, ')}"
    return re.sub(r"^\w+ should |, unable to .*", "", text)


def _place(key: str, layer: Layer) -> str:
    """Return the origin of a key or of one below it, or else of the nearest one around it."""
    parts = key.split(".")
    for k in range(len(parts), 0, -1):
        begin = ".".join(parts[:k])
        for name, one in layer.items():
            if name == begin or name.startswith(f"{begin}."):
                return one.origin
    return DEFAULT


def _class_at(key: str, tree: Any) -> type[BaseModel]:
    """Return the class of the section at a dotted key."""
    kind: type[BaseModel] = Config
    for part in key.split(".") if key else ():
        tree = tree[int(part) if isinstance(tree, list | tuple) else part]
        field = kind.model_fields.get(part)
        inner = [kind] if field is None else _models(field.annotation)
        kind = inner[0] if inner else kind
        if kind in BY_NAME and isinstance(tree, dict):
            kind = BY_NAME[kind](dict(tree))
    return kind


def _models(kind: Any) -> list[type[BaseModel]]:
    """Return the classes of sections in the annotation of a key."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [one for part in get_args(kind) for one in _models(part)]


def _keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a section and of the sections in it."""
    for name, field in kind.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _models(field.annotation):
            yield from _keys(inner, f"{prefix}{name}.")
