"""Files beside a checkpoint with rows of clients, so that a checkpoint adds changed rows only.

The clients' leaves of a checkpoint are a common row and a list of files, each with the rows of some
clients. If several files have rows of a client, those of the last one count. A client without rows
in any file has the common row, as clients have that never trained. A file never changes after it is
written: both checkpoints of a folder can name the same files, and one that none of them names is
removed.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flbench.core import files
from flbench.core.storage import Storage, layout_of
from flbench.core.tree import write_counts
from flbench.core.types import Tree
from flbench.results.checkpoint_files import OF_ROWS, checked_name

PIECE: Final = 2**28
"""Bytes of rows that are copied and written at once: the size of a file, unless a row is larger."""
PART: Final = ".part"
NEW: Final = ""  # stands for the files that are about to be written
NO_FILE: Final = -1
WHOLE_NUMBERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NAMES: Final = TypeAdapter(list[str])


@dataclass(frozen=True)
class RowFile:
    """A file with rows of some clients.

    Attributes:
        name: Name of the file; it ends with random characters, so that no name is used twice.
        ids: Ids [R] int64 of the clients, each once.
    """

    name: str
    ids: Tensor


@dataclass(frozen=True)
class StoredRows:
    """What a checkpoint says about the clients' leaves.

    Attributes:
        common: The row [...] of each leaf of the clients that are in no file.
        files: Files with rows of the other clients, the oldest first.
    """

    common: Tree
    files: tuple[RowFile, ...]

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return [file.name for file in self.files]


class ChangedRows:
    """Knows which rows of the clients are stored, and which have changed since.

    Args:
        stored: What the last checkpoint of the folder says; None if there is none, or if it is a
            single file with all rows.
    """

    def __init__(self, stored: StoredRows | None = None) -> None:
        self._stored = stored
        self._changed: set[int] = set()
        self._all_changed = False
        self._versions: list[int] | None = None

    def check(self, clients: Tree) -> None:
        """Note that all rows have changed if they were written to without a call of `changed`.

        PyTorch counts the writes to a tensor. Only the loop writes to the clients' leaves, but code
        of the user could do so too.

        Args:
            clients: Leaves [N, ...] of all clients.
        """
        now = write_counts(clients)
        self._all_changed |= self._versions is not None and self._versions != now
        self._versions = now

    def changed(self, clients: Tree, ids: Tensor | None) -> None:
        """Note that rows have changed since the last call of `check`.

        Args:
            clients: Leaves [N, ...] of all clients.
            ids: Ids [K] of the clients whose rows have changed; None for all clients.
        """
        self._changed.update([] if ids is None else ids.tolist())
        self._all_changed |= ids is None
        self._versions = write_counts(clients)

    def write(self, folder: Path, clients: Tree, trained: Tensor) -> StoredRows:
        """Write rows that have changed to new files; `commit` tells that a checkpoint names them.

        If the files would then have more than twice the rows that count, all rows are written anew.

        Args:
            folder: Folder of the checkpoints.
            clients: Leaves [N, ...] of all clients, at least one.
            trained: How often each client has trained, [N]; it chooses the common row.

        Raises:
            OSError: A file cannot be written. Those that were written are named by no checkpoint.
        """
        self.check(clients)
        before, count = self._stored, len(trained)
        if before is None:
            like = int(trained.argmin())
            common = {name: value[like].clone() for name, value in clients.items()}
            before = StoredRows(common, ())
            ids = _different(clients, common)
        elif self._all_changed:
            ids = torch.arange(count)
        else:
            ids = torch.tensor(sorted(self._changed), dtype=torch.int64)
        counting = _counting([*before.files, RowFile(NEW, ids)], count)
        is_stored = torch.zeros(count, dtype=torch.bool)
        for file in counting:
            is_stored[file.ids] = True
        live = is_stored.nonzero()[:, 0]
        if sum(len(file.ids) for file in counting) > 2 * len(live):
            counting, ids = [], live
        numbers = [int(file.name.split("-")[1]) for file in _files(folder)]
        written: list[RowFile] = []
        for piece in _pieces(clients, ids, PIECE):
            number = max(numbers, default=0) + len(written) + 1
            name = f"rows-{number:06d}-{secrets.token_hex(8)}.safetensors"
            rows = {f"rows/{key}": value[piece] for key, value in clients.items()}
            write_tensors(folder / name, {"ids": piece, **rows}, {})
            written.append(RowFile(name, piece))
        old = [file for file in counting if file.name != NEW]
        return StoredRows(before.common, (*old, *written))

    def commit(self, stored: StoredRows) -> None:
        """Note that a checkpoint has been written that names these files."""
        self._stored, self._all_changed = stored, False
        self._changed.clear()


def read(folder: Path, common: Tree, names: Any, count: int, storage: Storage) -> tuple[Any, Tree]:
    """Return the files that a checkpoint names, and the clients' leaves that can be written to.

    Args:
        folder: Folder of the checkpoint.
        common: The row [...] of each leaf of the clients that are in no file.
        names: Names of the files, as the checkpoint has them.
        count: Number of clients N.
        storage: Where the leaves are stored.

    Returns:
        A `StoredRows`, and leaves [N, ...].

    Raises:
        ValueError: A name is not that of such a file, or a file has not the rows that it should.
        OSError: A file cannot be read.
        SafetensorError: A file is damaged.
        RunError: There is not enough memory or disk space for the leaves.
    """
    found = []
    for name in NAMES.validate_python(names):
        files.check_regular(folder / checked_name(name))
        with safe_open(folder / name, framework="pt") as file:
            found.append(RowFile(name, _ids(file.get_tensor("ids"), count, name)))
    layout = {name: ((count, *shape), dtype) for name, (shape, dtype) in layout_of(common).items()}
    clients = storage.zeros(layout, "the tensors that the clients keep")
    newest = _newest(found, count)
    for ids in _pieces(clients, (newest == NO_FILE).nonzero()[:, 0], PIECE):
        for name, value in clients.items():
            value[ids] = common[name].expand(len(ids), *common[name].shape)
    for number, one in enumerate(found):
        counts = newest[one.ids] == number
        if not bool(counts.any()):
            continue
        with safe_open(folder / one.name, framework="pt") as file:
            for name, value in clients.items():
                rows = file.get_tensor(f"rows/{name}")
                if rows.dtype != value.dtype or rows.shape != (len(one.ids), *value.shape[1:]):
                    raise ValueError(f"{one.name} has no rows of the shape of `{name}`")
                value[one.ids[counts]] = rows[counts]
    return StoredRows(common, tuple(found)), clients


def remove_others(folder: Path, named: Iterable[str]) -> None:
    """Remove the files of rows in a folder that no checkpoint names.

    Args:
        folder: Folder of the checkpoints.
        named: Names of the files that checkpoints name.
    """
    kept = set(named)
    for file in _files(folder):
        if file.name not in kept:
            files.discard(file)


def write_tensors(path: Path, tensors: Tree, metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically: beside it, synced, and renamed.

    Args:
        path: The file.
        tensors: Tensors that share no memory.
        metadata: Texts that are stored with them.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
        SafetensorError: The disk failed.
    """
    beside = path.with_name(path.name + PART)
    try:
        beside.unlink(missing_ok=True)  # safetensors would write through a link of this name
        save_file(tensors, beside, metadata)
        files.sync(beside)
        beside.replace(path)
        files.sync(path.parent)
    except BaseException:
        files.discard(beside)
        raise


def _files(folder: Path) -> list[Path]:
    """Return the files of rows in a folder, with those that were not completely written."""
    return [
        file
        for file in folder.glob("rows-*")
        if OF_ROWS.fullmatch(file.name.removesuffix(PART)) is not None
    ]


def _ids(ids: Tensor, count: int, name: str) -> Tensor:
    """Return ids of clients that were read from a file.

    Raises:
        ValueError: They are no ids of different clients.
    """
    is_list = ids.dtype == torch.int64 and ids.ndim == 1
    if not is_list or len(set(ids.tolist())) != len(ids) or ((ids < 0) | (ids >= count)).any():
        raise ValueError(f"{name} has no ids of {count} clients")
    return ids.clone()


def _newest(found: Sequence[RowFile], count: int) -> Tensor:
    """Return the number [N] of the last file with rows of each client, or -1."""
    newest = torch.full((count,), NO_FILE)
    for number, file in enumerate(found):
        newest[file.ids] = number
    return newest


def _counting(found: Sequence[RowFile], count: int) -> list[RowFile]:
    """Return the files of which at least one row counts."""
    newest = _newest(found, count)
    return [file for number, file in enumerate(found) if bool((newest[file.ids] == number).any())]


def _pieces(clients: Tree, ids: Tensor, size: int) -> Iterator[Tensor]:
    """Yield ids of clients in pieces whose rows have at most `size` bytes, at least one client."""
    row = sum(value[0].numel() * value.element_size() for value in clients.values())
    return iter(torch.split(ids, max(1, size // max(1, row))) if len(ids) else ())


def _different(clients: Tree, common: Tree) -> Tensor:
    """Return the ids of the clients of which a leaf has other bits than the common row."""
    count = len(next(iter(clients.values())))
    differs = torch.zeros(count, dtype=torch.bool)
    for ids in _pieces(clients, torch.arange(count), PIECE):
        low, high = int(ids[0]), int(ids[-1]) + 1
        for name, value in clients.items():
            if value[0].numel():
                rows = _bits(value[low:high].reshape(len(ids), -1))
                differs[low:high] |= (rows != _bits(common[name].reshape(1, -1))).any(dim=1)
    return differs.nonzero()[:, 0]


def _bits(rows: Tensor) -> Tensor:
    """Return a matrix as whole numbers: NaN is equal to itself, and 0.0 differs from -0.0."""
    return rows.contiguous().view(WHOLE_NUMBERS.get(rows.element_size(), torch.uint8))
