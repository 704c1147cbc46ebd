"""Matrices of numbers for pairs of clients, stored by entries as long as few pairs have one.

A matrix of N clients is a tensor [N, N] float64, or, where that takes less memory, a tensor
[E, 1, 3] float64 of its E entries: row, column and value, in ascending order of rows and columns.
All other entries are zero.
"""

from typing import Final

import torch
from torch import Tensor

from flbench.core.storage import memory_of_machine

DENSE: Final = 64
"""Largest number of clients of matrices that are never stored by entries."""
SHOWN: Final = 1_000
"""Largest number of clients whose matrix is a table of a report."""


def zeros(clients: int) -> Tensor:
    """Return a matrix of zeros of N clients.

    >>> zeros(3).shape, zeros(1000).shape
    (torch.Size([3, 3]), torch.Size([0, 1, 3]))
    """
    shape = (clients, clients) if clients <= DENSE else (0, 1, 3)
    return torch.zeros(shape, dtype=torch.float64)


def rows(matrix: Tensor, ids: Tensor, clients: int) -> Tensor:
    """Return the rows [K, N] float64 of some clients.

    Args:
        matrix: The matrix.
        ids: Ids [K] int64 of the clients.
        clients: Number of clients N.
    """
    if matrix.ndim == 2:
        return matrix[ids]
    found = torch.zeros(len(ids), clients, dtype=torch.float64)
    row, column, value = matrix[:, 0].unbind(dim=1)
    row = row.contiguous()
    wanted = ids.double()
    begins, ends = (torch.searchsorted(row, wanted, right=right) for right in (False, True))
    for k, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        found[k, column[begin:end].long()] = value[begin:end]
    return found


def with_entries(
    matrix: Tensor, row: Tensor, column: Tensor, value: Tensor, clients: int
) -> Tensor:
    """Return a matrix with other values of E entries.

    Args:
        matrix: The matrix; it is not changed.
        row: Rows [E] int64 of the entries.
        column: Columns [E] int64; no pair of row and column occurs twice.
        value: Values [E] float64.
        clients: Number of clients N.

    >>> row, column, value = torch.tensor([7]), torch.tensor([9]), torch.tensor([0.5])
    >>> one = with_entries(zeros(100), row, column, value, 100)
    >>> one.tolist(), float(rows(one, torch.tensor([7]), 100)[0, 9])
    ([[[7.0, 9.0, 0.5]]], 0.5)
    """
    if matrix.ndim == 2:
        changed = matrix.clone()
        changed[row, column] = value.double()
        return changed
    new = torch.stack([row.double(), column.double(), value.double()], dim=1)[:, None]
    entries = torch.cat([matrix, new])  # [E, 1, 3]
    keys = entries[:, 0, 0].long() * clients + entries[:, 0, 1].long()
    keys, order = keys.sort(stable=True)
    is_last = torch.ones(len(keys), dtype=torch.bool)
    is_last[:-1] = keys[1:] != keys[:-1]  # of several values of an entry, the newest
    entries = entries[order[is_last]]
    return dense(entries, clients) if entries.numel() >= clients**2 else entries


def with_rows(matrix: Tensor, ids: Tensor, columns: Tensor, value: Tensor, clients: int) -> Tensor:
    """Return a matrix in which the rows of some clients are replaced.

    Args:
        matrix: The matrix; it is not changed.
        ids: Ids [K] int64 of the clients.
        columns: Columns [M] int64 that the new rows have.
        value: Values [K, M] float64; entries in all other columns are zero.
        clients: Number of clients N.

    >>> one = with_rows(zeros(100), torch.tensor([7]), torch.tensor([3, 9]), torch.ones(1, 2), 100)
    >>> other = with_rows(one, torch.tensor([7]), torch.tensor([4]), torch.ones(1, 1), 100)
    >>> one[:, 0].tolist(), other[:, 0].tolist()
    ([[7.0, 3.0, 1.0], [7.0, 9.0, 1.0]], [[7.0, 4.0, 1.0]])
    """
    if matrix.ndim == 2:
        rows = torch.zeros_like(matrix[ids])
        rows[:, columns] = value.double()
        return matrix.index_copy(0, ids, rows)
    others = matrix[~torch.isin(matrix[:, 0, 0], ids.double())]
    row, column = ids.repeat_interleave(len(columns)), columns.repeat(len(ids))
    return with_entries(others, row, column, value.reshape(-1), clients)


def dense(matrix: Tensor, clients: int) -> Tensor:
    """Return a matrix as a tensor [N, N] float64."""
    if matrix.ndim == 2:
        return matrix
    whole = torch.zeros(clients, clients, dtype=torch.float64)
    row, column, value = matrix[:, 0].unbind(dim=1)
    whole[row.long(), column.long()] = value
    return whole


def too_large(what: str, entries: int, cure: str, memory: int | None = None) -> list[str]:
    """Return a sentence if float64 numbers do not fit into the memory of this machine.

    Args:
        what: What they are, as the subject of a sentence.
        entries: How many they are.
        cure: A sentence on what to do.
        memory: Bytes of memory; None for those of this machine.
    """
    memory = memory or memory_of_machine()
    if 8 * entries <= memory:
        return []
    need, there = 8 * entries / 2**30, memory / 2**30
    return [f"{what} would take {need:,.1f} GiB, and this machine has {there:,.1f} GiB. {cure}"]
