"""Descriptions of the registered methods, for tables and commands, as plain dicts."""

import inspect
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.algorithms.shared.topology import (
    GossipConfig,
    components,
    graph_of,
    mixing_rows,
    positions,
    spectral_gap,
)
from flbench.config.schema import AlgorithmConfig
from flbench.core.errors import ConfigError
from flbench.core.registry import ALGORITHMS
from flbench.core.rng import Draw

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


@dataclass(frozen=True)
class Network:
    """The network of a decentralized method in its first round, with all clients in the cohort.

    Attributes:
        config: Keys of the method.
        graph: [N, N] bool; `graph[i, j]` is True if client j sends its model to client i.
        weights: [N, N] float64, the mixing weights of the graph; each row sums to one.
    """

    config: GossipConfig
    graph: Tensor
    weights: Tensor

    @property
    def title(self) -> str:
        """Title of a picture of the network."""
        first_round = ", first round" if self.config.topology == "random" else ""
        return f"{self.config.topology}: {len(self.graph)} clients{first_round}"

    @property
    def positions(self) -> NDArray[np.float64]:
        """Positions [N, 2] of the clients in a picture."""
        return positions(self.config.topology, len(self.graph))

    def entry(self) -> Entry:
        """Return numbers that describe the network.

        Returns:
            `topology` and `mixing`, as configured; `clients` N; `payloads`, the messages of a
            round; `neighbours`, the smallest and the largest number of models that a client mixes
            besides its own; `both_ways`, whether all links lead in both directions; `parts`, the
            number of connected parts; `spectral_gap` in [0, 1].
        """
        degree = self.graph.sum(dim=1)
        return {
            "topology": self.config.topology,
            "mixing": self.config.mixing,
            "clients": len(self.graph),
            "payloads": int(self.graph.sum()),
            "neighbours": [int(degree.min()), int(degree.max())],
            "both_ways": bool(torch.equal(self.graph, self.graph.T)),
            "parts": len(components(self.graph.numpy())),
            "spectral_gap": round(spectral_gap(self.weights), 6),
        }


def network(config: AlgorithmConfig, seed: int, clients: int) -> Network:
    """Return the network of a decentralized method.

    Args:
        config: Section `algorithm`.
        seed: Seed of the run, which determines the networks that are drawn.
        clients: Number of clients N.

    Raises:
        ConfigError: The method has no network.
    """
    if not isinstance(config, GossipConfig):
        raise ConfigError(
            f"`algorithm.name={config.name}` has a server, and no network of clients. Name a"
            " decentralized method, such as algorithm=dfedavg."
        )
    graph = graph_of(config, Draw(seed, (0,), clients), torch.arange(clients))
    return Network(config, graph, mixing_rows(graph, config.mixing))


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
