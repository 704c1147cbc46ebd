"""Formatting of a configuration as YAML, with the origin of each value in a comment."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from flbench.core.files import is_text
from flbench.core.plain_yaml import MAX_CHARACTERS, MAX_VALUES, is_integer
from flbench.core.text import one_line

MOST_PADDED: Final = 100  # characters of the longest line that comments are aligned with
REMEMBERED: Final = 100  # characters of the longest text whose YAML is remembered
CERTAIN: Final = MAX_CHARACTERS // 4  # characters of JSON whose YAML is certainly short enough


def to_yaml(tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Return a configuration as YAML text.

    Args:
        tree: Nested dicts of plain values; parsing the text gives an equal tree.
        origins: Origin of each value by its dotted path, such as `default` or `my.yaml:3`. A value
            without an origin gets no comment.

    >>> print(to_yaml({"train": {"rounds": 5}}, {"train.rounds": "my.yaml:2"}), end="")
    train:
      rounds: 5  # my.yaml:2
    """
    lines = list(_lines(tree, ""))
    width = max((len(text) for text, _ in lines if len(text) <= MOST_PADDED), default=0)
    return "".join(
        # The name of a file may contain line breaks.
        f"{text:<{width}}  # {one_line(origins[path])}\n" if path in origins else f"{text}\n"
        for text, path in lines
    )


def unreadable(tree: Mapping[str, Any], origins: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why a configuration could not be read again from its YAML text.

    Args:
        tree: Nested dicts of plain values.
        origins: Origin of each value by its dotted path.

    Returns:
        The dotted path of the value, and a sentence without its full stop; None if the text can be
        read.
    """
    sizes: dict[str, int] = {}
    total = 0
    for path, value in _values(tree, ""):
        found = list(_scalars(value))
        sizes[path] = len(found)
        if not is_text(path):
            above = path.rpartition(".")[0]
            return above, f"`{above}` has a key with NUL or half of a surrogate pair. Remove it"
        total += len(found) + 1 + path.count(".")
        for one in found:
            if isinstance(one, str) and not is_text(one):
                return path, f"`{path}` contains NUL or half of a surrogate pair. Remove it"
            if isinstance(one, int) and not is_integer(one):
                return path, f"`{path}` has an integer of more than 64 bits. Choose a smaller one"
    largest = max(sizes, key=lambda path: sizes[path], default="")
    cure = "Write them to a file that your function reads, and give its path instead"
    if total > MAX_VALUES:
        return largest, (
            f"`{largest}` has {sizes[largest]:,} values, and a configuration at most"
            f" {MAX_VALUES:,}. {cure}"
        )
    if len(json.dumps(tree, ensure_ascii=False)) + sum(map(len, origins.values())) > CERTAIN:
        length = len(to_yaml(tree, origins).encode())
        if length > 0.9 * MAX_CHARACTERS:  # other files have other comments
            longest = max(_values(tree, ""), key=lambda item: len(json.dumps(item[1])))[0]
            return longest, (
                f"the values of `{longest}` make a configuration of {length:,} bytes, more than"
                f" {0.9 * MAX_CHARACTERS:,.0f}. {cure}"
            )
    return None


def _values(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each key that is not a section."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _scalars(value: Any) -> Iterator[Any]:
    """Yield the scalars, keys among them, of a value, and the lists and dicts themselves."""
    yield value
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _scalars(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _scalars(item)


def _lines(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Return (line, dotted path) for every key; the path of a section is empty."""
    lines = []
    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        name = _scalar(key)  # names of arguments and metrics may be words such as `yes`
        if isinstance(value, dict) and value:
            lines.append((f"{indent}{name}:", ""))
            lines += _lines(value, f"{prefix}{key}.")
        else:
            lines.append((f"{indent}{name}: {_scalar(value)}", f"{prefix}{key}"))
    return lines


def _scalar(value: object) -> str:
    """Return a value in YAML's flow style, on one line.

    Configurations consist of the same keys and mostly of the same values, so most texts are
    remembered. Those of floats are not: 0.0 and -0.0 are equal, but their texts are not.
    """
    is_short = isinstance(value, str) and len(value) <= REMEMBERED
    if is_short or value is None or isinstance(value, int):
        return _remembered(value)
    return _dumped(value)


def _dumped(value: object) -> str:
    """Return what PyYAML makes of a value, on one line."""
    style: dict[str, Any] = {"default_flow_style": True, "width": 10**9}
    text: str = yaml.safe_dump(value, allow_unicode=True, **style)
    if "\x85" in text:  # a line break, which PyYAML does not escape
        text = yaml.safe_dump(value, allow_unicode=False, **style)
    return text.removesuffix("\n").removesuffix("\n...")


_remembered = lru_cache(maxsize=4096, typed=True)(_dumped)
