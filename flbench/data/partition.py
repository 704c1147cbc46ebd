"""A partition: which samples each client holds, with a content hash."""

import hashlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from flbench.data.dataset import Dataset
from flbench.data.schemes import Indices

PARTS: Final = ("train", "validation", "test")


@dataclass(frozen=True)
class Partition:
    """The samples of every client.

    Attributes:
        parts: for each of `train`, `validation`, `test`: one ascending index array per client.
        labels: SHA-256 over the labels of the data set that the indices mean.
        notes: what a reader must know: tries, repairs, clients left out.
    """

    parts: dict[str, list[Indices]]
    labels: str
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return len(self.parts["train"])

    def hash(self) -> str:
        """Return the SHA-256 (hex) over labels and index arrays.

        Equal hashes, equal experiments.
        """
        sha = hashlib.sha256(self.labels.encode())
        for part in PARTS:
            for indices in self.parts[part]:
                sha.update(np.int64(len(indices)).astype("<i8").tobytes())
                sha.update(indices.astype("<i8").tobytes())
        return sha.hexdigest()


def label_hash(dataset: Dataset) -> str:
    """Return the SHA-256 (hex) over a data set's labels and the size of its train part."""
    return hashlib.sha256(
        dataset.y.astype("<i8").tobytes() + str(dataset.train).encode()
    ).hexdigest()
