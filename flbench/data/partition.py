"""The data type of a partition: which samples each client has."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from flbench.core.printable import one_line
from flbench.data.dataset import Dataset
from flbench.data.schemes import Indices

PARTS: Final = ("train", "validation", "test")


@dataclass(frozen=True)
class ClientParts:
    """The samples of every client.

    Attributes:
        parts: For each of `train`, `validation` and `test`: one array of ascending rows of the data
            set per client.
        labels: SHA-256 (hex) over the labels of the data set that the rows refer to.
        notes: Notes on how the partition was made, such as repeated draws or samples that were
            moved, one sentence each.
        names: Names of the N clients if they are natural ones with names; otherwise empty.
        shifts: How the samples of each client are shifted, in words; empty if none are.
        relabelled: New class of each class by client; empty if labels are those of the data set.

    >>> def rows(*of_clients):
    ...     return [np.array(of_client, dtype=np.int64) for of_client in of_clients]
    >>> parts = {"train": rows([0, 1], [4]), "validation": rows([2], []), "test": rows([3], [5])}
    >>> ClientParts(parts, labels="").clients
    2
    """

    parts: dict[str, list[Indices]]
    labels: str
    notes: tuple[str, ...] = field(default=(), compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)
    shifts: tuple[str, ...] = field(default=(), compare=False)
    relabelled: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return len(self.parts["train"])

    def called(self, client: int) -> str:
        """Return the id of a client for sentences, with its name behind it if it has one.

        >>> ClientParts({"train": [], "validation": [], "test": []}, "", names=("a", "b")).called(1)
        '1 (b)'
        """
        return f"{client} ({one_line(self.names[client])})" if self.names else str(client)

    def with_shifts(
        self, shifts: tuple[str, ...], relabelled: tuple[tuple[int, ...], ...]
    ) -> "ClientParts":
        """Return a copy whose clients have shifted samples; see `flbench.data.shift`."""
        return replace(self, shifts=shifts, relabelled=relabelled)

    def classes_of(self, y: Indices) -> Indices:
        """Return the classes [n] of all samples as clients see them.

        Args:
            y: Labels [n] of the data set.
        """
        if not self.relabelled:
            return y
        found = y.copy()
        for client, new in enumerate(self.relabelled):
            for part in PARTS:
                rows = self.parts[part][client]
                found[rows] = np.array(new, dtype=np.int64)[y[rows]]
        return found

    def hash(self) -> str:
        """Return the SHA-256 (hex) over the labels and the rows of all clients.

        Partitions of one data set with equal hashes give every client the same samples.
        """
        sha = hashlib.sha256(self.labels.encode())
        for part in PARTS:
            for indices in self.parts[part]:
                sha.update(np.int64(len(indices)).astype("<i8").tobytes())
                sha.update(indices.astype("<i8").tobytes())
        return sha.hexdigest()


def label_hash(dataset: Dataset) -> str:
    """Return the SHA-256 (hex) over a data set's labels, or targets, and size of its train part."""
    sha = hashlib.sha256(dataset.y.astype("<i8").tobytes() + str(dataset.train).encode())
    if dataset.targets is not None:
        sha.update(f"{dataset.targets.dtype}{dataset.targets.shape}".encode())
        sha.update(np.ascontiguousarray(dataset.targets).data)
    return sha.hexdigest()
