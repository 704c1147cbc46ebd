"""Descriptions of the registered methods, for tables and commands, as plain dicts."""

import inspect
from math import inf
from typing import Any

from flbench.core.registry import ALGORITHMS

Entry = dict[str, Any]


def methods() -> list[Entry]:
    """Return all methods, without their hyper-parameters and their documentation."""
    return [
        {key: value for key, value in method(name).items() if key not in ("parameters", "about")}
        for name in ALGORITHMS.load()
    ]


def method(name: str | type) -> Entry:
    """Return one method.

    Args:
        name: Name of the method, its import path, or its class.

    Returns:
        `name`; `paper` with `title`, `authors`, `venue` and `doi`; what the server sends (`down`),
        what clients send (`up`) and keep (`keeps`); `needs`, what the setting must have, and
        `example`, overrides with which the default net has it; `about`, the documentation;
        `parameters`, see `parameter`.

    Raises:
        ConfigError: No method has this name; the message names the closest ones.
    """
    name = ALGORITHMS.section(name)["name"]
    kind = ALGORITHMS.find(name)
    return {
        "name": name,
        "paper": {key: getattr(kind.paper, key) for key in ("title", "authors", "venue", "doi")},
        "down": kind.communication.down,
        "up": kind.communication.up,
        "keeps": kind.communication.keeps,
        "needs": [need.title for need in kind.needs],
        "example": list(kind.example()),
        "about": inspect.getdoc(kind) or "",
        "parameters": [
            parameter(key, schema)
            for key, schema in kind.Config.model_json_schema()["properties"].items()
            if key not in ("name", "source", "sha256")
        ],
    }


def parameter(name: str, schema: Entry) -> Entry:
    """Return one hyper-parameter.

    Args:
        name: Its key in the section.
        schema: The JSON schema of the key.

    Returns:
        `name`, `default`, `range` (as text, such as `[0, 1)` or `a | b`), `unit` (None for a number
        without one) and `meaning`.
    """
    parts = [values for part in schema.get("anyOf", [schema]) for values in _values(part)]
    return {
        "name": name,
        "default": schema.get("default"),
        "range": " | ".join(dict.fromkeys(parts)),
        "unit": schema.get("unit"),
        "meaning": schema.get("description"),
    }


def as_yaml(default: Any) -> str:
    """Return a default as YAML writes it.

    >>> [as_yaml(default) for default in (None, True, "A", 0.5)]
    ['null', 'true', 'A', '0.5']
    """
    if default is None:
        return "null"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _values(schema: Entry) -> list[str]:
    """Return the values that a JSON schema accepts, as text; nothing for text and null."""
    if "items" in schema:
        return _values(schema["items"])
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        return [as_yaml(choice) for choice in choices if isinstance(choice, str | bool)]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if schema.get("type") not in ("integer", "number"):
        return []
    low = f"({schema.get('exclusiveMinimum', -inf):g}"
    high = f"{schema.get('exclusiveMaximum', inf):g})"
    low = f"[{schema['minimum']:g}" if "minimum" in schema else low
    high = f"{schema['maximum']:g}]" if "maximum" in schema else high
    return [f"{low}, {high}"]
