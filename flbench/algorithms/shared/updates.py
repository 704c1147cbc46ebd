"""The latest update of every client, remembered by the server: entries `delta.*` and `seen`."""

from collections.abc import Iterable

import torch
from torch import Tensor

from flbench.algorithms.shared.prefixes import prefixed, stripped
from flbench.core.tree import take
from flbench.core.types import Tree

DELTA = "delta."


def blank(start: Tree, names: Iterable[str], clients: int) -> Tree:
    """Return the entries before the first round, for updates of these leaves."""
    zeros = {name: start[name].new_zeros(clients, *start[name].shape) for name in names}
    return prefixed(DELTA, zeros) | {"seen": torch.full((clients,), -1)}


def note(server: Tree, ids: Tensor, deltas: Tree, t: int) -> Tree:
    """Return the entries after clients `ids` [K] brought these updates [K, ...] in round t."""
    entries = {
        name: server[name].index_copy(0, ids, value)
        for name, value in prefixed(DELTA, deltas).items()
    }
    return entries | {"seen": server["seen"].index_fill(0, ids, t)}


def latest(server: Tree, ids: Tensor) -> Tree:
    """Return the latest updates of clients `ids` [K], [K, ...] each."""
    return take(stripped(DELTA, server), ids)


def recent(server: Tree, ids: Tensor, t: int, age: int) -> Tensor:
    """Return [K] bool: whose latest update is at most so many rounds old in round t."""
    seen = server["seen"][ids]
    return (seen >= 0) & (t - seen <= age)
