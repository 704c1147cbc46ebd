"""Where the rows that clients keep lie: in memory or, if they are many, in a mapped file."""

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from flbench.core.errors import RunError
from flbench.core.tree import copied, nbytes
from flbench.core.types import Tree

GIB = 2**30
PIECE = 2**24  # bytes that are copied at once


def writable_copy(rows: Tree, limit: float, folder: Path) -> Tree:
    """Return a copy of the clients' rows that may be written in place.

    Rows of more than `limit` are mapped: the system holds in memory those that rounds touch and
    writes the others to the disk when memory is needed. The file has no name, so that nothing is
    left of it when the process ends, however it ends.

    Args:
        rows: [N, ...] each; may be expanded views.
        limit: GiB of rows that stay in memory.
        folder: in whose file system a mapped file lies; made if it is missing.
    Raises: RunError if the disk has no room for them.
    """
    size = nbytes(rows)
    if size <= limit * GIB:
        return copied(rows)
    try:
        return {name: _mapped(value, folder) for name, value in rows.items()}
    except OSError as error:
        raise RunError(
            f"what the clients keep takes {size / GIB:.1f} GiB, more than"
            f" `engine.state_memory`={limit}, and {folder} has no room for it"
            f" ({error.strerror or error}). Choose a larger disk with --out DIR, or raise"
            " engine.state_memory where memory is free."
        ) from error


def exceeds_limit(rows: Tree, limit: float) -> bool:
    """Return whether `own` maps such rows."""
    return nbytes(rows) > limit * GIB


def _mapped(value: Tensor, folder: Path) -> Tensor:
    """Return a copy of one leaf in a file that has lost its name already."""
    if not value.numel():
        return value.clone()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".state-", dir=folder)
    try:
        # Room is taken now: a write into a mapped hole of a full disk would kill the process.
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
