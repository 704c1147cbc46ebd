"""Networks of clients for decentralized methods, and the weights with which neighbours mix models.

A graph is a bool matrix: `graph[i, j]` is True if client j sends its model to client i, which mixes
it. The diagonal is False. All graphs are undirected, except `random` and `exponential` without
`symmetric`.
"""

from functools import lru_cache
from math import ceil, sqrt
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from flbench.config.schema import AlgorithmConfig
from flbench.core.rng import Draw, generator

Links = NDArray[np.bool_]

LINKS = 0x11A7  # key of a random stream, larger than any round
SWAPS: Final = 10  # attempts to swap ends per link of a random regular graph


class GossipConfig(AlgorithmConfig):
    """Keys of all decentralized methods."""

    topology: Literal[
        "random", "ring", "grid", "exponential", "complete", "star", "erdos_renyi", "k_regular"
    ] = Field(
        "random",
        description="which clients mix models: `random`, each with `neighbours` others drawn in"
        " each round; all other values are networks that do not change during a run",
    )
    neighbours: int = Field(
        10,
        ge=1,
        description="random, k_regular: number of neighbours of a client, at most all others;"
        " erdos_renyi: mean number",
    )
    symmetric: bool = Field(
        False,
        description="random, exponential: if a client mixes the model of another, the other mixes"
        " its model too",
    )
    edge_probability: float | None = Field(
        None,
        ge=0,
        le=1,
        description="erdos_renyi: probability of each link (default: such that `neighbours` is the"
        " mean number of links of a client)",
    )
    mixing: Literal["uniform", "metropolis"] = Field(
        "uniform",
        description="weights of a client and its neighbours: `uniform` for equal ones, or"
        " `metropolis`, which keep the mean of all models if the network is undirected",
    )
    after_training: bool = Field(
        False,
        description="true: models are evaluated as they were after local training, before mixing;"
        " clients keep a copy of them",
    )


def graph_of(config: GossipConfig, draw: Draw, ids: Tensor) -> Tensor:
    """Return the graph [K, K] bool of the clients of a round, in the order of `ids`.

    Of a network that does not change, a round uses the links between clients of the cohort, so that
    nothing passes through an absent client. The links depend on the seed, the round and the set of
    clients, `ids` [K] int64, not on their order.
    """
    among, back = torch.sort(ids)[0].numpy(), torch.argsort(torch.argsort(ids)).numpy()
    if config.topology == "random":
        links = _drawn(config, draw.method_generator(LINKS), len(among))
    else:
        links = network(config, draw.seed, draw.clients)[np.ix_(among, among)]
    return torch.from_numpy(links[np.ix_(back, back)])


def _drawn(config: GossipConfig, rng: np.random.Generator, count: int) -> Links:
    """Return the graph [K, K] of `random` for one round of `count` clients K."""
    degree = min(config.neighbours, count - 1)
    if config.symmetric:
        return _regular(count, degree, rng)
    scores = rng.random((count, count))
    np.fill_diagonal(scores, 2.0)  # larger than all others: no client is its own neighbour
    links = np.zeros((count, count), dtype=bool)
    np.put_along_axis(links, np.argsort(scores, axis=1)[:, :degree], True, axis=1)
    return links


@lru_cache(maxsize=8)
def network(config: GossipConfig, seed: int, clients: int) -> Links:
    """Return the graph [N, N] of a network that does not change, as a read-only array."""
    n, ids, rng = clients, np.arange(clients), generator(seed, "method", LINKS)
    match config.topology:
        case "ring":
            links = _circulant(n, {1, n - 1})
        case "grid":  # rows of ceil(sqrt n) clients
            row, column = np.divmod(ids, ceil(sqrt(n)))
            links = np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1
        case "exponential":  # i with i + 1, i + 2, i + 4, ... modulo n
            steps = {2**k for k in range(n.bit_length()) if 2**k < n}
            links = _circulant(n, steps | {n - k for k in steps} if config.symmetric else steps)
        case "complete":
            links = np.ones((n, n), dtype=bool)
        case "star":  # client 0 with all others
            links = (ids == 0)[:, None] | (ids == 0)
        case "erdos_renyi":
            given, mean = config.edge_probability, config.neighbours / max(1, n - 1)
            upper = np.triu(rng.random((n, n)) < (mean if given is None else given), 1)
            links = upper | upper.T
        case _:  # k_regular
            links = _regular(n, min(config.neighbours, n - 1), rng)
    np.fill_diagonal(links, False)
    links.flags.writeable = False
    return links


def _circulant(n: int, steps: set[int]) -> Links:
    """Return the links of i with i + step modulo n."""
    distance = (np.arange(n) - np.arange(n)[:, None]) % n
    return np.isin(distance, list(steps))


def _regular(n: int, degree: int, rng: np.random.Generator) -> Links:
    """Return a random undirected graph [n, n] in which each client has `degree` < n links.

    If n and degree are both odd, there is no such graph, and one client has one link less. The
    graph begins as a fixed regular one, then pairs of links swap ends, which keeps all degrees.
    """
    links = _circulant(n, {s for k in range(1, degree // 2 + 1) for s in (k, n - k)})
    if degree % 2:  # one more link for each client, with the opposite one
        for i in range(n // 2):
            links[i, i + n // 2] = links[i + n // 2, i] = True
    name = rng.permutation(n)
    links = links[np.ix_(name, name)]
    ends: list[Any] = np.argwhere(np.triu(links)).tolist()
    count = len(ends)
    if count < 2:
        return links
    picks = rng.integers(count, size=(SWAPS * count, 2)).tolist()
    turns = (rng.random(SWAPS * count) < 0.5).tolist()
    for (p, q), turn in zip(picks, turns, strict=True):
        (a, b), (c, d) = ends[p], ends[q][::-1] if turn else ends[q]
        if len({a, b, c, d}) < 4 or links[a, d] or links[c, b]:
            continue
        links[[a, b, c, d], [b, a, d, c]] = False
        links[[a, d, c, b], [d, a, b, c]] = True
        ends[p], ends[q] = [a, d], [c, b]
    return links


def mixing_rows(graph: Tensor, mixing: str) -> Tensor:
    """Return the mixing rows [K, K] float64 of a graph [K, K] bool; each row sums to one.

    d_i is the number of clients that client i mixes besides itself. `uniform`: w_ij = w_ii =
    1 / (d_i + 1). `metropolis`: w_ij = 1 / (1 + max(d_i, d_j)), and w_ii is 1 minus the rest of the
    row; if the graph is undirected, columns sum to one too, so mixing keeps the mean of all models.
    A client without links keeps its model.
    """
    degree = graph.sum(dim=1).double()
    if mixing == "uniform":
        with_self = graph | torch.eye(len(graph), dtype=torch.bool)
        return with_self / (degree[:, None] + 1.0)
    rows = graph / (1.0 + torch.maximum(degree[:, None], degree))
    return rows + torch.diag(1.0 - rows.sum(dim=1))


def components(links: Links) -> list[list[int]]:
    """Return the clients of each connected part of a graph [N, N]; directions are ignored."""
    count, label = connected_components(links, directed=False)
    return [np.flatnonzero(label == part).tolist() for part in range(count)]
