"""The data type of a partition: which samples each client has."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.core.text import one_line
from flbench.data.dataset import PARTS, Dataset
from flbench.data.schemes import Indices, by_class, largest_remainder

Transform = Callable[[NDArray[Any], Indices, int, np.random.Generator], tuple[Any, Any]]
"""Function from the samples [n, ...] and the classes [n] of a client, the client's id and a random
generator to samples and classes of the same shapes."""


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
        classes: Classes [n] of all samples as clients see them; None for those of the data set.
        transform: Function by which a scheme of the user transforms the samples of a client, until
            it has been applied; see `flbench.data.shift.transformed`.
        transformed: SHA-256 (hex) of the samples that such a function has returned.

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
    classes: Indices | None = field(default=None, compare=False, repr=False)
    transform: Transform | None = field(default=None, compare=False, repr=False)
    transformed: str | None = None

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

    def rows(self, client: int) -> Indices:
        """Return the ascending rows of all parts of a client."""
        return np.sort(np.concatenate([self.parts[part][client] for part in PARTS]))

    def classes_of(self, y: Indices) -> Indices:
        """Return the classes [n] of all samples as clients see them."""
        return y if self.classes is None else self.classes

    def hash(self) -> str:
        """Return the SHA-256 (hex) over the labels and the rows of all clients.

        Partitions of one data set with equal hashes give every client the same rows. Samples that
        a scheme of the user has transformed count too; those of the section `shift` do not.
        """
        sha = hashlib.sha256(self.labels.encode())
        for part in PARTS:
            for indices in self.parts[part]:
                sha.update(np.int64(len(indices)).astype("<i8").tobytes())
                sha.update(indices.astype("<i8").tobytes())
        if self.transformed is not None:
            sha.update(self.transformed.encode())
        return sha.hexdigest()


def label_hash(dataset: Dataset) -> str:
    """Return the SHA-256 (hex) over a data set's labels, or targets, and size of its train part."""
    sha = hashlib.sha256(dataset.y.astype("<i8").tobytes() + str(dataset.train).encode())
    if dataset.targets is not None:
        sha.update(f"{dataset.targets.dtype}{dataset.targets.shape}".encode())
        sha.update(np.ascontiguousarray(dataset.targets).data)
    return sha.hexdigest()


def split_client(
    indices: Indices, y: Indices, ratios: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Split a client's samples into train, validation and test parts, stratified by class.

    The sizes of the parts follow the ratios by the largest-remainder method, with at least one
    training sample. Of a class with n samples, each part first gets floor(ratio * n); the remaining
    samples of all classes fill the parts up in random order.

    Returns:
        The ascending rows of the three parts.

    >>> rows, labels = np.arange(10), np.array([0, 1] * 5)
    >>> parts = split_client(rows, labels, (0.6, 0.2, 0.2), np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [6, 2, 2]
    """
    sizes = largest_remainder(np.array(ratios), len(indices))
    if sizes[0] == 0 and len(indices):
        sizes[sizes.index(max(sizes))] -= 1
        sizes[0] = 1
    parts: list[list[int]] = [[], [], []]
    rest: list[int] = []
    for positions in by_class(y):
        members = rng.permutation(indices[positions]).tolist()
        for part, ratio in zip(parts, ratios, strict=True):
            count = int(np.floor(ratio * len(positions) + 1e-9))
            part += members[:count]
            members = members[count:]
        rest += members
    rest = rng.permutation(rest).astype(np.int64).tolist()
    for part, size in zip(parts, sizes, strict=True):
        # A part can be too large if its size was reduced to leave one sample for training.
        while len(part) > size:
            rest.append(part.pop())
    for part, size in zip(parts, sizes, strict=True):
        while len(part) < size:
            part.append(rest.pop())
    train, validation, test = (np.sort(np.array(part, dtype=np.int64)) for part in parts)
    return train, validation, test
