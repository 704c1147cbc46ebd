"""Schemes that distribute samples to clients, as functions of labels and a random generator."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import PartitionConfig

Indices = NDArray[np.int64]

Scheme = Callable[[Indices, int, int, PartitionConfig, np.random.Generator], list[Indices]]
"""Function that distributes the samples of a pool to clients.

Its arguments are the labels of the pool, the number of classes C, the number of clients N, the
section `partition` and a random generator. It returns positions in the pool, one array for every
client.
"""


def iid(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Distribute the samples at random in equal shares."""
    return list(np.array_split(rng.permutation(len(y)), clients))


def dirichlet_by_class(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Distribute every class to the clients in shares drawn from Dirichlet(alpha).

    Classes are distributed one after another. A client that already has its equal share of the pool
    or more gets nothing of the following classes, which bounds the sizes of the clients (as in
    Yurochkin et al., ICML 2019).

    With `partition.balanced`, every client instead draws its mixture of classes from
    Dirichlet(alpha), and all clients get equally many samples. Where a class has too few samples,
    samples of other classes take their place.
    """
    if config.balanced:
        return _balanced(y, clients, config.alpha, rng)
    drawn, owners = [], []  # the samples in the order in which they are distributed
    sizes = np.zeros(clients, dtype=np.int64)
    for members in by_class(y):
        samples = rng.permutation(members)
        below_share = sizes < len(y) / clients
        shares = np.where(below_share, dirichlet(config.alpha, clients, rng), 0.0)
        if shares.sum() == 0.0:  # the draw gave everything to clients that get no more
            shares = below_share.astype(np.float64)
        ends = np.cumsum(shares / shares.sum())[:-1] * len(samples)
        cuts = np.floor(ends + 1e-9).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(samples))  # [N]
        drawn.append(samples)
        owners.append(np.repeat(np.arange(clients), counts))
        sizes += counts
    return by_client(np.concatenate(drawn), np.concatenate(owners), clients)


def by_class(y: Indices) -> list[Indices]:
    """Return the ascending positions of each class that occurs, in ascending order of the classes.

    >>> [positions.tolist() for positions in by_class(np.array([7, 0, 7]))]
    [[1], [0, 2]]
    """
    order = np.argsort(y, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(y[order])) + 1) if len(y) else []


def by_client(samples: Indices, owners: Indices, clients: int) -> list[Indices]:
    """Return the samples of each client in their order, given the client [n] of each sample [n]."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=clients))[:-1]
    return np.split(samples[order], ends)


def _balanced(y: Indices, clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Distribute equally many samples to all clients; see `dirichlet_by_class`."""
    labels = np.unique(y)
    left = {int(label): list(rng.permutation(np.flatnonzero(y == label))) for label in labels}
    sizes = [len(piece) for piece in np.array_split(y, clients)]
    mixes = [dirichlet(alpha, len(labels), rng) for _ in range(clients)]
    assigned: list[list[int]] = [[] for _ in range(clients)]
    for client, mix in enumerate(mixes):
        for label, count in zip(labels, largest_remainder(mix, sizes[client]), strict=True):
            stock = left[int(label)]
            assigned[client] += [stock.pop() for _ in range(min(count, len(stock)))]
    # Clients whose classes ran out are filled up with the remaining samples in random order.
    unused = [index for stock in left.values() for index in stock]
    rest = rng.permutation(np.array(unused, dtype=np.int64)).tolist()
    for client in range(clients):
        assigned[client] += [rest.pop() for _ in range(sizes[client] - len(assigned[client]))]
    return [np.array(indices, dtype=np.int64) for indices in assigned]


def dirichlet(alpha: float, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw from a symmetric Dirichlet distribution, correctly for any alpha > 0.

    The usual method normalizes draws from Gamma(alpha), which all underflow to 0 for a small alpha.
    Here their logarithms are drawn: if G has the distribution Gamma(alpha + 1) and U is uniform,
    then log G + log(U) / alpha is the logarithm of a draw from Gamma(alpha). Shares are rounded to
    12 digits, so that differences between machines in the last bits of log and exp do not decide
    which client gets a sample.

    Returns:
        Shares [n] float64 that sum to 1, up to rounding.
    """
    gammas, uniforms = np.log(rng.standard_gamma(alpha + 1.0, size=n)), np.log1p(-rng.random(n))
    with np.errstate(over="ignore"):
        logs = gammas + uniforms / alpha
        if not np.isfinite(logs.max()):  # a tiny alpha: one share is 1, and the others are 0
            logs = (uniforms - uniforms.max()) / alpha
    shares = np.exp(logs - logs.max())
    return np.asarray(np.round(shares / shares.sum(), 12))


def largest_remainder(shares: NDArray[np.float64], total: int) -> list[int]:
    """Divide a total into integers in proportion to shares, by the largest-remainder method.

    Args:
        shares: Shares [n] >= 0; they are normalized to sum to 1.
        total: Integer to divide.

    Returns:
        n integers that sum to `total`, each less than 1 away from its exact share.

    >>> largest_remainder(np.array([0.6, 0.2, 0.2]), 7)
    [4, 2, 1]
    """
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    short = total - int(counts.sum())
    # Among equal remainders the lowest index comes first. Remainders are rounded before they are
    # compared, so that the result is the same on every machine.
    order = np.argsort(-np.round(exact - counts, 9), kind="stable")
    counts[order[:short]] += 1
    return [int(count) for count in counts]
