"""Sentences about the wrong keys of a configuration."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from flbench.config.schema import (
    AlgorithmConfig,
    Config,
    ModelConfig,
    TermConfig,
    method_class,
    net_class,
    term_class,
)
from flbench.config.sources import DEFAULT, Layer
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


def sentences(error: ValidationError, layer: Layer, tree: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each wrong key."""
    found: dict[str, list[Any]] = {}
    for item in error.errors():
        found.setdefault(_key(item, tree), []).append(item)
    return [_sentence(key, items, layer, tree) for key, items in found.items()]


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

    There are several errors if the key accepts several types and its value has none of them.
    """
    item = items[0]
    kind, value, text = item["type"], item.get("input"), str(item["msg"])
    key = f"{key}.name" if kind == "sentence" else key
    place = _place(key, layer)
    if kind == "extra_forbidden":
        section, _, last = key.rpartition(".")
        hidden = ("source", "sha256") if section == "algorithm" else ()  # flbench writes them
        known = [one for one in _class_at(section, tree).model_fields if one not in hidden]
        every = list(_keys(Config))
        with suppress(ConfigError):  # an unknown method has an error of its own
            every += [f"algorithm.{one}" for one in _class_at("algorithm", tree).model_fields]
        deeper = (f" Did you mean `{one}`?" for one in every if one.endswith(f".{last}"))
        hint = did_you_mean(last, known) or next(deeper, "")
        listed = f" Keys there: {', '.join(known)}."
        where = f"`{section}`" if section else "the configuration"
        return f"`{key}` is not a key of {where} ({place}).{hint or listed}"
    if kind == "missing":
        return f"`{key}` is missing ({place})."
    if kind == "sentence" or (kind == "value_error" and isinstance(value, Mapping)):
        text = text.removeprefix("Value error, ")
        return f"`{key}` ({place}): {text}{'' if text.endswith(('.', '?')) else '.'}"
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
    return re.sub(r"^\w+ should |, unable to .*| after validation, .*", "", text)


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
