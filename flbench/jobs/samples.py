"""The data of jobs: each data set is loaded once, each partition is made once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flbench.core.documents import read_json
from flbench.core.errors import DataError
from flbench.core.parts import offered
from flbench.data import federation as federations
from flbench.data import own_schemes, partition_files, sources
from flbench.data.dataset import Dataset
from flbench.data.federation import Federation
from flbench.jobs.job import Job

KEPT: Final = 2  # partitions that are kept in memory; jobs are ordered by partition

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

    def federation(self, job: Job) -> Federation:
        """Return the samples of a job's clients.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them.
        """
        key = partition_key(job)
        if key not in self._federations:
            while len(self._federations) >= KEPT:
                del self._federations[next(iter(self._federations))]
            own = {"data": self.data[job.data]} if job.data in self.data else {}
            with offered({**self.objects, **own}):
                self._federations[key] = federations.build(
                    self._dataset(job),
                    job.config.data,
                    job.config.partition,
                    job.config.seed,
                    job.config.shift,
                )
        return self._federations[key].reseeded(job.config.seed)

    def keep(self, job: Job, dataset: Dataset) -> None:
        """Note the data set of a job, which has been loaded for something else."""
        self._datasets[_key(job, "data")] = dataset

    def partition(self, job: Job) -> PartitionFiles:
        """Return the content of partition.npz and of partition.json of a job's run folder."""
        found, asked = self.federation(job), job.config.partition
        sha256 = own_schemes.sha256(asked, found.partition.hash())
        seed = job.config.partition_seed
        section = asked.altered(seed=seed, clients=found.clients, sha256=sha256)
        return partition_files.encode(found.partition, found.dataset, section)

    def data_hash(self, job: Job) -> str:
        """Return the SHA-256 (hex) of the data set of a job; see `partition_files.data_hash`.

        Raises:
            UserError: The data cannot be read.
        """
        key = _key(job, "data")
        if key not in self._hashes:
            self._hashes[key] = partition_files.data_hash(self.federation(job).dataset)
        return self._hashes[key]

    def check_unchanged(self, job: Job, path: Path) -> None:
        """Check that a job that has begun has the samples that it began with.

        Raises:
            DataError: They differ.
        """
        was = read_json(path / "partition.json").get("data")
        if (now_is := self.data_hash(job)) != was:
            title = job.data or job.config.data.title
            raise DataError(
                f"`data`: the samples of {title} differ from those that {path} began with (hash"
                f" {now_is[:12]}, not {str(was)[:12]}). Restore the old files, or start again from"
                " the beginning."
            )

    def _dataset(self, job: Job) -> Dataset:
        """Return the data set of a job."""
        key = _key(job, "data")
        if key not in self._datasets:
            self._datasets[key] = sources.load(job.config.data)
        return self._datasets[key]


def partition_key(job: Job) -> str:
    """Return a text that two jobs share if they have the same data and the same partition."""
    return f"{_key(job, 'data', 'partition', 'shift')} {job.config.partition_seed}"


def _key(job: Job, *sections: str) -> str:
    tree = job.config.tree()
    return json.dumps([job.data, *(tree[name] for name in sections)], sort_keys=True)
