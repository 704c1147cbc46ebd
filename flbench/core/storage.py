"""Tensors in main memory or, if they are large, in mapped files."""

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from flbench.core import control_groups
from flbench.core.errors import RunError
from flbench.core.tree import nbytes
from flbench.core.types import Tree

GIB: Final = 2**30
LARGE: Final = 2**20
"""Bytes of a tensor of the server from which on it is worth a mapped file."""
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor of a tree."""


@dataclass(frozen=True)
class Storage:
    """Where large trees of tensors are stored.

    In another process, to which it is sent, everything is stored in main memory.

    Attributes:
        limit: Largest total size in GiB of a tree that is stored in main memory.
        folder: Folder whose file system holds the mapped files; created if it does not exist. None
            stores everything in main memory.

    >>> Storage().zeros({"w": ((2,), torch.float32)})
    {'w': tensor([0., 0.])}
    """

    limit: float = math.inf
    folder: Path | None = None

    def __reduce__(self) -> tuple[type["Storage"], tuple[()]]:
        return Storage, ()

    def holds(self, size: int) -> bool:
        """Return whether a tree of this size in bytes is stored in main memory."""
        return self.folder is None or size <= self.limit * GIB

    def zeros(self, layout: Layout) -> Tree:
        """Return tensors of zeros that can be written in place.

        Tensors of a tree that takes more than the limit are mapped files: the operating system
        keeps the parts that are used in memory and writes the others to the disk when it needs
        memory. The files are unlinked at once, so that none remains when the process ends, even by
        a crash.

        Raises:
            RunError: There is not enough memory, or the file system has not enough space.
        """
        size = _size(layout)
        if not self.holds(size):
            return self.mapped(layout)
        try:
            return {
                name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in layout.items()
            }
        except (RuntimeError, MemoryError) as error:  # PyTorch's allocator raises the first
            raise RunError(
                f"the run needs further {size / GIB:.1f} GiB, more than this machine has free."
                " Lower engine.state_memory, so that they are stored in a mapped file."
            ) from error

    def mapped(self, layout: Layout) -> Tree:
        """Return tensors of zeros in mapped files, of any size; see `zeros`.

        Raises:
            RunError: The file system has not enough space.
        """
        folder, size = self.folder or Path(tempfile.gettempdir()), _size(layout)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return {name: _mapped(*own, folder) for name, own in layout.items()}
        except OSError as error:
            raise RunError(
                f"tensors take {size / GIB:.1f} GiB, more than"
                f" `engine.state_memory`={self.limit:g}, and {folder} has not enough space for them"
                f" ({error.strerror or error}). Choose a larger disk with output.dir, or raise"
                " engine.state_memory if there is enough main memory."
            ) from error

    def copied(self, tree: Tree) -> Tree:
        """Return a copy of leaves, or of expanded views, that can be written in place."""
        return _filled(self.zeros(layout_of(tree)), tree)

    def of_server(self, tree: Tree, before: Tree) -> Tree:
        """Return the server's tree, with large new tensors in mapped files if it exceeds the limit.

        Args:
            tree: The tree after a round.
            before: The tree before the round; tensors that are in both have their place.

        Raises:
            RunError: The file system has not enough space.
        """
        if self.holds(nbytes(tree)):
            return tree
        new = {
            name: value
            for name, value in tree.items()
            if value is not before.get(name) and value.nbytes >= LARGE
        }
        places = self.mapped(layout_of(new))
        return {**tree, **_filled(places, new)}

    def rows(self, tree: Tree, ids: Tensor) -> Tree:
        """Return copies of rows of every leaf, as `flbench.core.tree.take`; see `zeros`.

        Args:
            tree: Leaves [N, ...].
            ids: Row numbers [K] int64.
        """
        layout = {name: ((len(ids), *value.shape[1:]), value.dtype) for name, value in tree.items()}
        if self.holds(_size(layout)):
            return {name: value[ids] for name, value in tree.items()}
        found = self.mapped(layout)
        for name, value in tree.items():
            torch.index_select(value, 0, ids, out=found[name])
        return found


def only_rows(tree: Tree, ids: Tensor) -> Tree:
    """Return leaves of the same shapes in which some clients alone have their values.

    All rows can be written. Those of other clients are zero, and take neither memory nor space on
    the disk until they are written.

    Args:
        tree: Leaves [N, ...] of all clients; they may be expanded views.
        ids: Ids [K] of the clients that have their values.
    """
    folder = Path(tempfile.gettempdir())
    found = {name: _mapped(*own, folder, reserves=False) for name, own in layout_of(tree).items()}
    for name, value in tree.items():
        found[name][ids] = value[ids]
    return found


def memory_of_machine() -> int:
    """Return the bytes of memory that this machine has, within the limits of control groups."""
    limits = [limit for limit, _ in control_groups.memory()]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def layout_of(tree: Tree) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of each tensor of a tree."""
    return {name: (tuple(value.shape), value.dtype) for name, value in tree.items()}


def _size(layout: Layout) -> int:
    """Return the bytes that tensors take."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())


def _filled(places: Tree, tree: Tree) -> Tree:
    """Copy the leaves of a tree to their places; return these."""
    for name, value in tree.items():
        places[name].copy_(value.detach())
    return places


def _mapped(
    shape: tuple[int, ...], dtype: torch.dtype, folder: Path, *, reserves: bool = True
) -> Tensor:
    """Return a tensor of zeros in a mapped file that is already unlinked.

    Args:
        shape: Its shape.
        dtype: Its type.
        folder: Folder of the file.
        reserves: Whether to allocate the space now. A write to an unallocated page of a mapped file
            on a full disk would kill the process with SIGBUS.
    """
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    handle, name = tempfile.mkstemp(prefix=".state-", dir=folder)
    try:
        if reserves:
            os.posix_fallocate(handle, 0, count * dtype.itemsize)
        # PyTorch makes the file as long as the tensor.
        return torch.from_file(name, shared=True, size=count, dtype=dtype).reshape(shape)
    finally:
        os.close(handle)
        os.unlink(name)
