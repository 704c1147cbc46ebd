"""Storage of the leaves that clients keep: main memory or, if they are large, mapped files."""

import mmap
import sys

import torch
from torch import Tensor

from flbench.core.storage import Storage, layout_of
from flbench.core.tree import copied, nbytes
from flbench.core.types import Tree

UNRESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0)
"""Flags of pages that are zero until they are written; the last one is Linux's MAP_NORESERVE, so
that more of them than there is memory can be asked for."""
PIECE = 2**24  # bytes that are copied in one step
LARGE = 2**20
"""Bytes of a tensor of the server from which on it is worth a mapped file."""
SERVER = "the tensors that the server keeps"


def writable_copy(rows: Tree, storage: Storage) -> Tree:
    """Return a copy of the clients' leaves that can be written in place.

    Args:
        rows: Leaves [N, ...] of all clients; they may be expanded views.
        storage: Where the copy is stored.

    Returns:
        Leaves of the same names, shapes and values.

    Raises:
        RunError: There is not enough memory, or the file system has not enough space.
    """
    if storage.holds(nbytes(rows)):
        return copied(rows)
    owned = storage.zeros(layout_of(rows), "the tensors that the clients keep")
    for name, value in rows.items():
        if not value.numel():
            continue
        step = max(1, PIECE // (value[0].numel() * value.element_size()))
        for low in range(0, len(value), step):
            owned[name][low : low + step] = value[low : low + step]
    return owned


def stored_server(server: Tree, before: Tree, storage: Storage) -> Tree:
    """Return the server's tree, with large new tensors in mapped files if it exceeds the limit.

    Args:
        server: The tree after a round.
        before: The tree before the round; tensors that are in both have their place.
        storage: Where the tree is stored.

    Raises:
        RunError: The file system has not enough space.
    """
    if storage.holds(nbytes(server)):
        return server
    new = {
        name: value
        for name, value in server.items()
        if value is not before.get(name) and nbytes({name: value}) >= LARGE
    }
    places = storage.mapped(layout_of(new), SERVER)
    for name, value in new.items():
        places[name].copy_(value)
    return {**server, **places}


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
