"""The methods of the registry: papers, hyper-parameters, what travels, links between clients."""

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
    """Return all methods, each in short."""
    return [
        {key: value for key, value in method(name).items() if key not in ("parameters", "about")}
        for name in ALGORITHMS.load()
    ]


def method(name: str) -> Entry:
    """Return one method: paper, what travels, hyper-parameters.

    Raises: ConfigError if there is none.
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
    """Return one hyper-parameter: default, range, unit, meaning."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return {
        "name": name,
        "default": field.default,
        "range": _range(field),
        "unit": extra.get("unit"),
        "meaning": field.description,
    }


def network(config: GossipConfig, graph: Tensor, rows: Tensor) -> Entry:
    """Return who mixes whose model, in numbers.

    Args:
        config: of a decentralised method.
        graph: [N, N] bool, of the first round if all clients take part.
        rows: [N, N] its mixing weights.
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
    """Return the values that a key takes, in words."""
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
