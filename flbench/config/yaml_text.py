"""The resolved configuration as YAML, with the origin of each value in a comment."""

from collections.abc import Mapping
from typing import Any

import yaml


def to_yaml(tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Return YAML text that reads back as `tree`.

    Args:
        tree: nested dicts of plain values.
        origins: where each value came from, by dotted path; a value without one has no comment.
    """
    lines = list(_lines(tree, ""))
    width = max((len(text) for text, _ in lines), default=0)
    return "".join(
        f"{text:<{width}}  # {origins[path]}\n" if path in origins else f"{text}\n"
        for text, path in lines
    )


def _lines(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Return (line, dotted path) of every key."""
    found = []
    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        if isinstance(value, dict):
            found.append((f"{indent}{key}:", ""))
            found += _lines(value, f"{prefix}{key}.")
        else:
            found.append((f"{indent}{key}: {_scalar(value)}", f"{prefix}{key}"))
    return found


def _scalar(value: object) -> str:
    """Return one value in YAML's flow style, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
