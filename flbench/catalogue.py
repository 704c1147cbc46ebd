"""What there is: methods and their hyper-parameters, data sets and where they are looked up."""

import inspect
from typing import Any, get_args

import torch
from pydantic.fields import FieldInfo
from torch import Tensor

from flbench.algorithms import ALGORITHMS
from flbench.algorithms.parts.gossip import GossipConfig
from flbench.algorithms.parts.topology import components, spectral_gap
from flbench.config import DataConfig
from flbench.data import sources
from flbench.data.federation import Federation

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
        "down": kind.wire.down,
        "up": kind.wire.up,
        "keeps": kind.wire.keeps,
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


def data_sets(config: DataConfig) -> list[Entry]:
    """Return the known data sets, and the files of `data.root` besides."""
    names = list(sources.known())
    if config.root.is_dir():
        files = (
            path.stem for path in sorted(config.root.iterdir()) if path.suffix in (".npz", ".zip")
        )
        names += [name for name in dict.fromkeys(files) if name not in names]
    return [data_set(config.model_copy(update={"name": name})) for name in names]


def data_set(config: DataConfig) -> Entry:
    """Return one data set: what it is, where it is looked up, and where it was found."""
    known = sources.known().get(config.name)
    if known is None and not is_there(config):
        sources.load(config)  # raises the error that says which file to put where
    places = [str(path) for path in sources.candidates(config)]
    if known is not None and known.load is not None:
        places.append(f"torchvision in {config.root}")
    if config.name == "digits":
        places = ["scikit-learn"]
    return {
        "name": config.name,
        "title": "a file" if known is None else known.title,
        "classes": None if known is None else known.classes,
        "shape": None if known is None else list(known.shape),
        "from": "data.root" if known is None else known.where,
        "looked_up": places,
        "found": found(config),
    }


def found(config: DataConfig) -> str | None:
    """Return where a data set lies, without loading or downloading it."""
    if config.name == "digits":
        return "scikit-learn"
    places = list(sources.candidates(config))
    known = sources.known().get(config.name)
    if known is not None and known.downloaded:
        places.append(config.root / known.downloaded)
    return next((str(path) for path in places if path.exists()), None)


def is_there(config: DataConfig) -> bool:
    """Return whether a data set can be loaded without a download."""
    return config.path is not None or found(config) is not None


def partition(federation: Federation) -> Entry:
    """Return a partition in numbers."""
    return {
        "dataset": federation.dataset.name,
        "hash": federation.partition.hash(),
        "clients": federation.clients,
        "classes": list(federation.dataset.classes),
        "samples": {
            part: [len(rows) for rows in federation.partition.parts[part]]
            for part in ("train", "validation", "test")
        },
        "common_test": len(federation.common),
        "train_counts": federation.counts.tolist(),
        "notes": list(federation.notes),
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
