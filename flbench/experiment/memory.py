"""Storage of the leaves that clients keep: main memory or, if they are large, mapped files."""

import mmap
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from flbench.core.errors import RunError
from flbench.core.tree import copied, nbytes
from flbench.core.types import Tree

GIB = 2**30
UNRESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0)
"""Flags of pages that are zero until they are written; the last one is Linux's MAP_NORESERVE, so
that more of them than there is memory can be asked for."""
PIECE = 2**24  # bytes that are copied in one step


def writable_copy(rows: Tree, limit: float, folder: Path) -> Tree:
    """Return a copy of the clients' leaves that can be written in place.

    Leaves that take more than `limit` are copied into memory-mapped files: the operating system
    keeps the rows that rounds use in memory and writes the others to the disk when it needs memory.
    The files are unlinked at once, so that none remains when the process ends, even by a crash.

    Args:
        rows: Leaves [N, ...] of all clients; they may be expanded views.
        limit: Largest total size in GiB of leaves that are copied to main memory.
        folder: Folder whose file system holds the mapped files; created if it does not exist.

    Returns:
        Leaves of the same names, shapes and values.

    Raises:
        RunError: The file system has not enough space.
    """
    size = nbytes(rows)
    if size <= limit * GIB:
        return copied(rows)
    try:
        return {name: _mapped(value, folder) for name, value in rows.items()}
    except OSError as error:
        raise RunError(
            f"the tensors that the clients keep take {size / GIB:.1f} GiB, more than"
            f" `engine.state_memory`={limit}, and {folder} has not enough space for them"
            f" ({error.strerror or error}). Choose a larger disk with output.dir, or raise"
            " engine.state_memory if there is enough main memory."
        ) from error


def only_rows(rows: Tree, ids: Tensor) -> Tree:
    """Return leaves of the same shapes in which some clients alone have their values.

    All rows can be written. Those of other clients are zero, and take no memory until they are
    written.

    Args:
        rows: Leaves [N, ...] of all clients; they may be expanded views.
        ids: Ids [K] of the clients that have their values.
    """
    found: Tree = {}
    for name, value in rows.items():
        if not value.numel():
            found[name] = value.clone()
            continue
        pages = mmap.mmap(-1, value.numel() * value.element_size(), flags=UNRESERVED)
        found[name] = torch.frombuffer(pages, dtype=value.dtype).reshape(value.shape)
        found[name][ids] = value[ids]
    return found


def exceeds_limit(rows: Tree, limit: float) -> bool:
    """Return whether `writable_copy` copies these leaves to mapped files.

    Args:
        rows: Leaves [N, ...] of all clients.
        limit: Largest total size in GiB of leaves that are copied to main memory.
    """
    return nbytes(rows) > limit * GIB


def _mapped(value: Tensor, folder: Path) -> Tensor:
    """Return a copy of one leaf [N, ...] in a mapped file that is already unlinked."""
    if not value.numel():
        return value.clone()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".state-", dir=folder)
    try:
        # Allocate the space now. A write to an unallocated page of a mapped file on a full disk
        # would kill the process with SIGBUS.
        os.posix_fallocate(handle, 0, value.numel() * value.element_size())
        target = torch.from_file(name, shared=True, size=value.numel(), dtype=value.dtype)
    finally:
        os.close(handle)
        os.unlink(name)
    target = target.reshape(value.shape)
    step = max(1, PIECE // max(1, value[0].numel() * value.element_size()))
    for low in range(0, len(value), step):
        target[low : low + step] = value[low : low + step]
    return target
