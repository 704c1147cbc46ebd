"""Configurations of cells, and fingerprints that tell which configurations give the same run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_file, from_values, leaves
from flbench.data.partitioning import DEFAULT_CLIENTS
from flbench.reproduce import library
from flbench.reproduce.cells import TableCell
from flbench.reproduce.request import ReproduceRequest
from flbench.reproduce.schema import PaperFacts
from flbench.reproduce.supply import DataSource

Change = tuple[str, Any, Any]
"""A dotted key, its value in the paper, and its value here."""


@dataclass(frozen=True)
class CellConfig:
    """The configurations of a cell.

    Attributes:
        config: Configuration to run, with the chosen data set and the user's overrides.
        origins: Origin of each value of `config`, by dotted key.
        paper: Configuration with the paper's settings, on the data set of the preset.
        scaled: The same with the settings of the chosen scale.
    """

    config: Config
    origins: Mapping[str, str]
    paper: Config
    scaled: Config


class CellConfigs:
    """Makes the configurations of cells. Cells with equal settings share one.

    Args:
        request: Options of the user.
        paper: Facts of the paper.
        given: The user's overrides.
        chosen: Source of each data set, by the paper's name of the data set.
    """

    def __init__(
        self,
        request: ReproduceRequest,
        paper: PaperFacts,
        given: Layer,
        chosen: Mapping[str, DataSource],
    ) -> None:
        self._request, self._paper, self._given, self._chosen = request, paper, given, chosen
        self._preset = from_file(library.preset(request.paper))
        self._cases: dict[str, CellConfig] = {}

    def of(self, cell: TableCell) -> CellConfig:
        """Return the configurations of a cell, with the seed of the preset."""
        algo = self._paper.methods[str(cell.method)].algo
        key = json.dumps([algo, cell.settings, cell.small], sort_keys=True)
        if key not in self._cases:
            self._cases[key] = self._resolve(cell, algo)
        case, source = self._cases[key], self._chosen[str(cell.dataset)]
        config = case.config.altered(data=case.config.data.altered(**source.values))
        names = (f"data.{name}" for name in source.values)
        origins = {**case.origins, **dict.fromkeys(names, "reproduce")}
        return CellConfig(config, origins, case.paper, case.scaled)

    def _resolve(self, cell: TableCell, algo: str) -> CellConfig:
        """Return the configurations of a cell on the data set of the preset."""
        name = from_values({"algorithm": algo}, "reproduce")
        origin = f"{self._paper.name}, {cell.table}"
        layers = [self._preset, name, from_values(cell.settings, origin)]
        paper, _ = resolve(layers)
        if self._request.scale == "small":
            layers.append(from_values(cell.small, "small scale"))
        scaled, _ = resolve(layers)
        output = {"output.dir": str(self._request.output.absolute())}
        layers += [self._overrides(algo), from_values(output, "--out")]
        config, origins = resolve(layers)
        return CellConfig(config, origins, paper, scaled)

    def _overrides(self, algo: str) -> Layer:
        """Return the user's overrides without the keys that the method does not have."""
        fields = ALGORITHMS.find(algo).Config.model_fields
        section = "algorithm."
        return self._given.where(
            lambda key: not key.startswith(section) or key.removeprefix(section) in fields
        )


def changes(case: CellConfig) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Return the changes of the small scale, and the further changes of the user's overrides.

    Keys that do not matter to a reader are left out: locations of files, and how often models are
    evaluated.
    """
    paper, scaled, here = (_compared(c) for c in (case.paper, case.scaled, case.config))
    skip = ("seed", "data.root", "data.name", "data.path", "evaluation.every")
    reported = [key for key in here if not key.startswith((*skip, "evaluation.common.every"))]
    own = [key for key in reported if here[key] != scaled.get(key)]
    other = [key for key in reported if key not in own and here[key] != paper.get(key)]
    by_scale, by_user = (
        tuple((key, paper.get(key), here[key]) for key in keys) for keys in (other, own)
    )
    return by_scale, by_user


def _compared(config: Config) -> dict[str, Any]:
    """Return the keys that a run's results depend on, with their values."""
    free = ("engine.", "tracking.", "output.")
    return {
        key: value
        for key, value in leaves(config.tree()).items()
        if not key.startswith(free) or key == "engine.precision"
    }


def fingerprint(config: Config) -> str:
    """Return a text that is equal for configurations whose runs have equal results.

    Values that a run fills in are filled in, or left out if they depend on the samples. Keys that
    the method does not have any more are left out.
    """
    tree, partition = _compared(config), config.partition
    if config.algorithm.name in ALGORITHMS.load():
        keys = {
            f"algorithm.{key}" for key in ALGORITHMS.find(config.algorithm.name).Config.model_fields
        }
        tree = {k: v for k, v in tree.items() if k in keys or not k.startswith("algorithm.")}
    tree["evaluation.every"] = config.evaluation_period
    tree["partition.seed"] = config.partition_seed
    if config.train.early_stopping.patience is None:
        tree = {key: tree[key] for key in tree if not key.startswith("train.early_stopping.")}
    if tree.get("algorithm.agg_weights") == "samples":
        del tree["algorithm.agg_weights"]  # a method that averages nothing may lack the key
    if config.data.path is not None:
        del tree["data.name"]  # a run takes it from the file
    if partition.scheme in ("natural", "file"):
        del tree["partition.clients"]
    elif partition.clients is None:
        tree["partition.clients"] = DEFAULT_CLIENTS
    return json.dumps(tree, sort_keys=True)
