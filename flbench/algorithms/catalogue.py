"""Descriptions of the registered methods, for tables and commands, as plain dicts."""

import inspect
from typing import Any, get_args

import torch
from pydantic.fields import FieldInfo
from torch import Tensor

from flbench.algorithms.shared.gossip import GossipConfig
from flbench.algorithms.shared.topology import components, spectral_gap
from flbench.core.registry import ALGORITHMS

Entry = dict[str, Any]


def methods() -> list[Entry]:
    """Return all methods, without their hyper-parameters and their documentation."""
    return [
        {key: value for key, value in method(name).items() if key not in ("parameters", "about")}
        for name in ALGORITHMS.load()
    ]


def method(name: str) -> Entry:
    """Return one method: its paper, what it exchanges, its documentation, its hyper-parameters.

    Raises: ConfigError if no method has this name; the message names the closest ones.
    """
    kind = ALGORITHMS.find(name)
    return {
        "name": name,
        "paper": {key: getattr(kind.paper, key) for key in ("title", "authors", "venue", "doi")},
        "down": kind.communication.down,
        "up": kind.communication.up,
        "keeps": kind.communication.keeps,
        "about": inspect.getdoc(kind) or "",
        "parameters": [
            parameter(key, field)
            for key, field in kind.Config.model_fields.items()
            if key != "name"
        ],
    }


def parameter(name: str, field: FieldInfo) -> Entry:
    """Return one hyper-parameter: its name, default, range, unit and meaning."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return {
        "name": name,
        "default": field.default,
        "range": _range(field),
        "unit": extra.get("unit"),
        "meaning": field.description,
    }


def network(config: GossipConfig, graph: Tensor, rows: Tensor) -> Entry:
    """Return metrics of the network of a decentralized method.

    Args:
        config: Keys of the method.
        graph: [N, N] bool, the graph of a round in which all clients take part.
        rows: [N, N] float64, the mixing weights of that graph.
    """
    degree = graph.sum(dim=1)
    return {
        "topology": config.topology,
        "mixing": config.mixing,
        "clients": len(graph),
        "payloads": int(graph.sum()),
        "neighbours": [int(degree.min()), int(degree.max())],
        "both_ways": bool(torch.equal(graph, graph.T)),
        "parts": len(components(graph.numpy())),
        "spectral_gap": round(spectral_gap(rows), 6),
    }


def _range(field: FieldInfo) -> str:
    """Return the values that a key accepts, as text."""
    choices, rules = [], list(field.metadata)
    for part in (field.annotation, *get_args(field.annotation)):  # itself, or a union's parts
        choices += [str(choice) for choice in get_args(part) if isinstance(choice, str | bool)]
        for rule in getattr(part, "__metadata__", ()):
            rules += rule.metadata if isinstance(rule, FieldInfo) else [rule]
    if choices and not rules:
        return " | ".join(choices)
    if field.annotation is bool:
        return "true | false"
    low, high = "(-inf", "inf)"
    for rule in rules:
        for name, bracket in (("ge", "["), ("gt", "(")):
            if getattr(rule, name, None) is not None:
                low = f"{bracket}{getattr(rule, name):g}"
        for name, bracket in (("le", "]"), ("lt", ")")):
            if getattr(rule, name, None) is not None:
                high = f"{getattr(rule, name):g}{bracket}"
    return " | ".join([*choices, f"{low}, {high}"])
