"""Types of configuration keys in words."""

from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def type_name(kind: Any) -> str:
    """Return the type of a key in the words of YAML.

    >>> type_name(tuple[float, float] | None)
    'list of 2: number or null'
    >>> type_name(dict[str, bool | int | list[bool | int]])
    'section of: true or false or integer or list: true or false or integer'
    """
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    names |= {Path: "path", type(None): "null"}
    if kind in names:
        return names[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "sections"
    if hasattr(kind, "__metadata__"):  # Annotated
        return type_name(kind.__origin__)
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        value = type_name(arguments[1])
        return value if value == "sections" else f"section of: {value}"
    if get_origin(kind) is list:
        return f"list: {type_name(arguments[0])}"
    if get_origin(kind) is tuple:
        parts = [part for part in arguments if part is not Ellipsis]
        length = "" if Ellipsis in arguments else f" of {len(parts)}"
        return f"list{length}: {type_name(parts[0])}"
    if arguments and all(isinstance(part, str | bool) for part in arguments):
        return "one of"
    return " or ".join(dict.fromkeys(type_name(part) for part in arguments)) or str(kind)


def choices_of(kind: Any) -> list[Any]:
    """Return all values of a key that is on/off or a choice; none of any other key.

    >>> choices_of(bool | Literal["auto"] | None)
    [True, False, 'auto', None]
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    found: list[Any] = []
    for part in parts:
        found += [True, False] if part is bool else []
        found += get_args(part) if get_origin(part) is Literal else []
    return [*found, None] if found and type(None) in parts else found
