"""The data of a comparison: each data set is loaded once, each partition is made once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flbench.comparison.plan import Cell
from flbench.core.given import offered
from flbench.data import federation as federations
from flbench.data import partition_files, sources
from flbench.data.dataset import Dataset
from flbench.data.federation import Federation
from flbench.experiment import assembly

KEPT: Final = 2  # partitions that are kept in memory; cells are ordered by partition

PartitionFiles = tuple[bytes, bytes]


@dataclass
class LoadedSamples:
    """Data sets and their partitions.

    Attributes:
        objects: Objects of the user by section, which the configurations name.
        data: Data of the user by the label of the data set, where it is an object.
    """

    objects: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    _datasets: dict[str, Dataset] = field(default_factory=dict)
    _federations: dict[str, Federation] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)

    def federation(self, cell: Cell) -> Federation:
        """Return the samples of a cell's clients.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them.
        """
        key = partition_key(cell)
        if key not in self._federations:
            while len(self._federations) >= KEPT:
                del self._federations[next(iter(self._federations))]
            config = assembly.fill_defaults(cell.config)
            own = {"data": self.data[cell.data]} if cell.data in self.data else {}
            with offered({**self.objects, **own}):
                self._federations[key] = federations.build(
                    self._dataset(cell), config.data, config.partition, config.seed
                )
        return self._federations[key].reseeded(cell.config.seed)

    def partition(self, cell: Cell) -> PartitionFiles:
        """Return the content of partition.npz and of partition.json of a cell's run folder."""
        found = self.federation(cell)
        config = assembly.with_data(assembly.fill_defaults(cell.config), found)
        return partition_files.encode(found.partition, found.dataset, config.partition)

    def data_hash(self, cell: Cell) -> str:
        """Return the SHA-256 (hex) of the data set of a cell; see `partition_files.data_hash`.

        Raises:
            UserError: The data cannot be read.
        """
        key = _key(cell, "data")
        if key not in self._hashes:
            self._hashes[key] = partition_files.data_hash(self.federation(cell).dataset)
        return self._hashes[key]

    def _dataset(self, cell: Cell) -> Dataset:
        """Return the data set of a cell."""
        key = _key(cell, "data")
        if key not in self._datasets:
            self._datasets[key] = sources.load(cell.config.data)
        return self._datasets[key]


def partition_key(cell: Cell) -> str:
    """Return a text that two cells share if they have the same data and the same partition."""
    return _key(cell, "data", "partition")


def _key(cell: Cell, *sections: str) -> str:
    tree = cell.config.tree()
    return json.dumps([cell.data, *(tree[name] for name in sections)], sort_keys=True)
