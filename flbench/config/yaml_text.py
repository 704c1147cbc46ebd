"""Formatting of a configuration as YAML, with the origin of each value in a comment."""

from collections.abc import Mapping
from typing import Any

import yaml

from flbench.core.printable import one_line


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
    width = max((len(text) for text, _ in lines), default=0)
    return "".join(
        # The name of a file may contain line breaks.
        f"{text:<{width}}  # {one_line(origins[path])}\n" if path in origins else f"{text}\n"
        for text, path in lines
    )


def _lines(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Return (line, dotted path) for every key; the path of a section is empty."""
    lines = []
    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        if isinstance(value, dict):
            lines.append((f"{indent}{key}:", ""))
            lines += _lines(value, f"{prefix}{key}.")
        else:
            lines.append((f"{indent}{key}: {_scalar(value)}", f"{prefix}{key}"))
    return lines


def _scalar(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
