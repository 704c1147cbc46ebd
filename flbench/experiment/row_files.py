"""Files beside a checkpoint with rows of clients, so that a checkpoint adds changed rows only.

The clients' leaves of a checkpoint are a common row and a list of files, each with the rows of some
clients. If several files have rows of a client, those of the last one count. A client without rows
in any file has the common row, as clients have that never trained. A file never changes after it is
written: both checkpoints of a folder can name the same files, and one that none of them names is
removed.
"""

import errno
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flbench.core import files
from flbench.core.storage import Storage, layout_of
from flbench.core.types import State, Tree
from flbench.results.checkpoint_files import checked_name

PIECE: Final = 2**28
"""Bytes of rows that are copied and written at once: the size of a file, unless a row is larger."""
PART: Final = ".part"
NO_FILE: Final = -1


class ClientRows:
    """The rows of the clients that the checkpoints of a folder have, and which have changed since.

    Args:
        common: The row [...] of each leaf of the clients that are in no file; None if the folder
            has no checkpoint.
        files: Names of the files with rows of the other clients, the oldest first, each with the
            ids [R] int64 of its clients. Names end with random characters: none is used twice.
    """

    def __init__(self, common: Tree | None = None, files: Mapping[str, Tensor] = {}) -> None:
        self.common = common
        self.files = dict(files)
        self._changed: set[int] = set()

    def changed(self, ids: Tensor) -> None:
        """Note that the rows of clients `ids` [K] have changed."""
        self._changed.update(ids.tolist())

    def write(self, folder: Path, state: State) -> "ClientRows":
        """Write rows that have changed to new files; return what a checkpoint can name then.

        If the files would have more than twice the rows that count, all rows are written anew.

        Raises:
            OSError: A file cannot be written. Those that were written are named by no checkpoint.
        """
        clients, count, common = state.clients, len(state.participation_count), self.common
        if common is None:
            like = int(state.participation_count.argmin())
            common = {name: rows[like].clone() for name, rows in clients.items()}
            ids = _different(clients, common, count)
        else:
            ids = torch.tensor(sorted(self._changed), dtype=torch.int64)
        newest = _newest([*self.files.values(), ids], count)
        counting, live = set(newest.tolist()), (newest != NO_FILE).nonzero()[:, 0]
        named = {name: own for k, (name, own) in enumerate(self.files.items()) if k in counting}
        if sum(map(len, named.values())) + len(ids) > 2 * len(live):
            named, ids = {}, live
        for piece in _pieces(clients, ids):
            name = f"rows-{state.round:06d}-{secrets.token_hex(8)}.safetensors"
            rows = {f"rows/{key}": value[piece] for key, value in clients.items()}
            write_tensors(folder / name, {"ids": piece, **rows}, {})
            named[name] = piece
        return ClientRows(common, named)


def read(
    folder: Path, common: Tree, names: Sequence[str], count: int, storage: Storage
) -> tuple[ClientRows, Tree]:
    """Return the files that a checkpoint names, and the clients' leaves that can be written to.

    Args:
        folder: Folder of the checkpoint.
        common: The row [...] of each leaf of the clients that are in no file.
        names: Names of the files, as the checkpoint has them.
        count: Number of clients N.
        storage: Where the leaves are stored.

    Returns:
        The files, and leaves [N, ...].

    Raises:
        ValueError: A name is not that of such a file, or a file has rows of another shape.
        IndexError: A file has rows of more than N clients.
        OSError: A file cannot be read.
        SafetensorError: A file is damaged.
        RunError: There is not enough memory or disk space for the leaves.
    """
    layout = {name: ((count, *shape), dtype) for name, (shape, dtype) in layout_of(common).items()}
    clients = storage.zeros(layout)
    found = {}
    for name in names:
        files.check_regular(folder / checked_name(name))
        with safe_open(folder / name, framework="pt") as file:
            found[name] = file.get_tensor("ids").clone()
    newest = _newest(found.values(), count)
    for ids in _pieces(clients, (newest == NO_FILE).nonzero()[:, 0]):
        for name, value in clients.items():
            value[ids] = common[name].expand(len(ids), *common[name].shape)
    for number, (one, ids) in enumerate(found.items()):
        counts = newest[ids] == number
        with safe_open(folder / one, framework="pt") as file:
            for name, value in clients.items():
                rows = file.get_tensor(f"rows/{name}")
                if rows.shape != (len(ids), *value.shape[1:]):  # it would broadcast
                    raise ValueError(name)
                value[ids[counts]] = rows[counts]
    return ClientRows(common, found), clients


def write_tensors(path: Path, tensors: Tree, metadata: dict[str, str]) -> None:
    """Write tensors, which share no memory, to a file atomically: beside it, synced, renamed.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
    """
    beside = path.with_name(path.name + PART)
    try:
        beside.unlink(missing_ok=True)  # safetensors would write through a link of this name
        save_file(tensors, beside, metadata)
        files.sync(beside)
        beside.replace(path)
        files.sync(path.parent)
    except BaseException as error:
        files.discard(beside)
        if isinstance(error, SafetensorError):  # it reports a failure of the disk as a text
            code = errno.ENOSPC if "space" in str(error).lower() else errno.EIO
            raise OSError(code, str(error), str(path)) from error
        raise


def _newest(ids_of_files: Iterable[Tensor], count: int) -> Tensor:
    """Return the number [N] of the last file with rows of each client, or -1."""
    newest = torch.full((count,), NO_FILE)
    for number, ids in enumerate(ids_of_files):
        newest[ids] = number
    return newest


def _pieces(clients: Tree, ids: Tensor) -> Iterator[Tensor]:
    """Yield ids of clients in pieces whose rows have at most PIECE bytes, at least one client."""
    row = sum(value[0].numel() * value.element_size() for value in clients.values())
    return iter(torch.split(ids, max(1, PIECE // max(1, row))) if len(ids) else ())


def _different(clients: Tree, common: Tree, count: int) -> Tensor:
    """Return the ids of the clients of which a leaf has other bits than the common row."""
    differs = torch.zeros(count, dtype=torch.bool)
    for ids in _pieces(clients, torch.arange(count)):
        for name, value in clients.items():
            rows = value[int(ids[0]) : int(ids[-1]) + 1].reshape(len(ids), -1)
            differs[ids] |= (_bytes(rows) != _bytes(common[name].reshape(1, -1))).any(dim=1)
    return differs.nonzero()[:, 0]


def _bytes(rows: Tensor) -> Tensor:
    """Return a matrix as bytes: NaN is equal to itself, and 0.0 differs from -0.0."""
    return rows.contiguous().view(torch.uint8)
