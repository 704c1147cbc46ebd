"""From a cell's settings to a configuration, and which configurations mean the same run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_file, leaves, merge
from flbench.data.partitioning import DEFAULT_CLIENTS
from flbench.reproduce import library
from flbench.reproduce.cells import Cell
from flbench.reproduce.request import Request
from flbench.reproduce.schema import Paper, Settings
from flbench.reproduce.supply import Source

Change = tuple[str, Any, Any]
"""A dotted key, its value in the paper, its value here."""


@dataclass(frozen=True)
class Case:
    """The configurations of a cell.

    Attributes:
        config: to run.
        origins: of its keys.
        paper: as the paper has it.
        scaled: as the small scale has it.
    """

    config: Config
    origins: Mapping[str, str]
    paper: Config
    scaled: Config


class Cases:
    """Makes the configurations of cells, equal ones once.

    Args:
        request: of the user.
        paper: its facts.
        given: the user's overrides.
        chosen: where samples come from, by the paper's names of data sets.
    """

    def __init__(
        self, request: Request, paper: Paper, given: Layer, chosen: Mapping[str, Source]
    ) -> None:
        self._request, self._paper, self._given, self._chosen = request, paper, given, chosen
        self._preset = from_file(library.preset(request.paper))
        self._cases: dict[str, Case] = {}

    def of(self, cell: Cell) -> Case:
        """Return the configurations of a cell; the seed is the preset's."""
        algo = self._paper.methods[str(cell.method)].algo
        key = json.dumps([algo, cell.settings, cell.small], sort_keys=True)
        if key not in self._cases:
            self._cases[key] = self._resolve(cell, algo)
        case, source = self._cases[key], self._chosen[str(cell.dataset)]
        data = case.config.data.model_copy(update=dict(source.values))
        config = case.config.model_copy(update={"data": data})
        names = (f"data.{name}" for name in source.values)
        origins = {**case.origins, **dict.fromkeys(names, "reproduce")}
        return Case(config, origins, case.paper, case.scaled)

    def _resolve(self, cell: Cell, algo: str) -> Case:
        """Return the configurations on the preset's own data set."""
        name = Layer({"algorithm": {"name": algo}}, {"algorithm.name": "reproduce"})
        layers = [self._preset, name, _nested(cell.settings, f"{self._paper.name}, {cell.table}")]
        paper, _ = resolve(layers)
        if self._request.scale == "small":
            layers.append(_nested(cell.small, "small scale"))
        scaled, _ = resolve(layers)
        output = {"output": {"dir": str(self._request.output.absolute())}}
        layers += [self._overrides(algo), Layer(output, {"output.dir": "--output"})]
        config, origins = resolve(layers)
        return Case(config, origins, paper, scaled)

    def _overrides(self, algo: str) -> Layer:
        """Return the user's overrides without the keys that only other methods have."""
        fields = ALGORITHMS.find(algo).Config.model_fields
        tree, _ = merge([self._given])
        section = tree.get("algorithm")
        if isinstance(section, dict):
            tree["algorithm"] = {key: value for key, value in section.items() if key in fields}
        return Layer(tree, self._given.origins)


def _nested(settings: Settings, origin: str) -> Layer:
    """Return dotted keys as a layer."""
    layers = []
    for dotted, value in settings.items():
        tree: Any = value
        for key in reversed(dotted.split(".")):
            tree = {key: tree}
        layers.append(Layer(tree, {dotted: origin}))
    return Layer(*merge(layers))


def changes(case: Case) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Return what the small scale changes, and what the user's overrides change besides.

    What a reader need not know is left out: where files lie, how often models are judged.
    """
    paper, scaled, here = (_compared(c) for c in (case.paper, case.scaled, case.config))
    skip = ("seed", "data.root", "data.name", "data.path", "evaluation.every")
    told = [key for key in here if not key.startswith((*skip, "evaluation.common.every"))]
    own = [key for key in told if here[key] != scaled.get(key)]
    other = [key for key in told if key not in own and here[key] != paper.get(key)]
    by_scale, by_user = (
        tuple((key, paper.get(key), here[key]) for key in keys) for keys in (other, own)
    )
    return by_scale, by_user


def _compared(config: Config) -> dict[str, Any]:
    """Return the keys that make a run's figures."""
    free = ("engine.", "tracking.", "output.")
    return {
        key: value
        for key, value in leaves(config.tree()).items()
        if not key.startswith(free) or key == "engine.precision"
    }


def fingerprint(config: Config) -> str:
    """Return a text that is equal for configurations whose runs have equal figures.

    What a run fills in is filled in here, or left out where nobody knows it before the samples are
    read.
    """
    tree, partition = _compared(config), config.partition
    if partition.seed is None:
        tree["partition.seed"] = config.seed
    if config.data.path is not None:
        del tree["data.name"]  # a run takes it from the file
    if partition.scheme in ("natural", "file"):
        del tree["partition.clients"]
    elif partition.clients is None:
        tree["partition.clients"] = DEFAULT_CLIENTS
    return json.dumps(tree, sort_keys=True)
