"""How samples are dealt to clients; a scheme is a pure function of labels and a stream."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import PartitionConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.data.dataset import Dataset

Indices = NDArray[np.int64]

Scheme = Callable[[Indices, int, int, PartitionConfig, np.random.Generator], list[Indices]]
"""(labels of the pool, C, N, configuration, stream) -> positions in the pool, for every client."""


def iid(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Deal a drawn order in equal shares."""
    return list(np.array_split(rng.permutation(len(y)), clients))


def dirichlet_by_class(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Deal every class in shares drawn from Dirichlet(alpha).

    A client that already holds an equal share of the pool gets nothing of the classes still to
    come, which keeps sizes within bounds (as in Yurochkin et al., ICML 2019). Balanced: every
    client draws its mix of classes from Dirichlet(alpha) and takes the same number of samples, as
    far as classes last.
    """
    if config.balanced:
        return _balanced(y, clients, config.alpha, rng)
    held: list[list[Indices]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.unique(y):
        samples = rng.permutation(np.flatnonzero(y == label))
        open_ = sizes < len(y) / clients
        shares = np.where(open_, dirichlet(config.alpha, clients, rng), 0.0)
        if shares.sum() == 0.0:  # the draw fell wholly on full clients
            shares = open_.astype(np.float64)
        ends = np.cumsum(shares / shares.sum())[:-1] * len(samples)
        cuts = np.floor(ends + 1e-9).astype(np.int64)
        for client, piece in enumerate(np.split(samples, cuts)):
            held[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(pieces) for pieces in held]


def _balanced(y: Indices, clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    labels = np.unique(y)
    left = {int(label): list(rng.permutation(np.flatnonzero(y == label))) for label in labels}
    sizes = [len(piece) for piece in np.array_split(y, clients)]
    mixes = [dirichlet(alpha, len(labels), rng) for _ in range(clients)]
    held: list[list[int]] = [[] for _ in range(clients)]
    for client, mix in enumerate(mixes):
        for label, count in zip(labels, largest_remainder(mix, sizes[client]), strict=True):
            stock = left[int(label)]
            held[client] += [stock.pop() for _ in range(min(count, len(stock)))]
    # Classes that ran out leave gaps: they are filled with what is left, in a drawn order.
    unused = [index for stock in left.values() for index in stock]
    rest = rng.permutation(np.array(unused, dtype=np.int64)).tolist()
    for client in range(clients):
        held[client] += [rest.pop() for _ in range(sizes[client] - len(held[client]))]
    return [np.array(indices, dtype=np.int64) for indices in held]


def dirichlet(alpha: float, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return one draw [n] from a symmetric Dirichlet, right for any alpha > 0.

    Gamma(alpha) underflows to 0 for small alpha and the usual ratio becomes 0/0. Here its logarithm
    is drawn: log Gamma(alpha) = log Gamma(alpha + 1) + log(U) / alpha. Shares are rounded to 12
    digits so that the last bits of a machine's log and exp do not decide who gets a sample.
    """
    logs = np.log(rng.standard_gamma(alpha + 1.0, size=n)) + np.log1p(-rng.random(n)) / alpha
    shares = np.exp(logs - logs.max())
    return np.asarray(np.round(shares / shares.sum(), 12))


def pathological(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client `classes_per_client` classes, each in equal shares to those that have it.

    Classes are handed out in rounds over all classes, so each has floor or ceil of N count / C
    holders.
    """
    if config.classes_per_client > classes:
        raise ConfigError(
            f"`partition.classes_per_client` must be at most the {classes} classes of the data set,"
            f" got {config.classes_per_client}."
        )
    labels = np.unique(y)
    count = min(config.classes_per_client, len(labels))
    holders: dict[int, list[int]] = {int(label): [] for label in labels}
    for client in rng.permutation(clients):
        order = rng.permutation(len(labels))
        # Those with the fewest holders first; the drawn order decides among equals.
        scarce = sorted(order, key=lambda k: len(holders[int(labels[k])]))
        for k in scarce[:count]:
            holders[int(labels[k])].append(int(client))
    held: list[list[Indices]] = [[np.zeros(0, dtype=np.int64)] for _ in range(clients)]
    for label, owners in holders.items():
        samples = rng.permutation(np.flatnonzero(y == label))
        for client, piece in zip(
            owners, np.array_split(samples, max(1, len(owners))), strict=False
        ):
            held[client].append(piece)
    return [np.concatenate(pieces) for pieces in held]


def grouped(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Give every client `main_share` of its samples from its group's main classes.

    Source: SLAPFL, section 4: 20 clients in groups of 7, 7 and 6 with 2, 3 and 5 main classes.
    Groups are as equal as possible; a client's samples are spread evenly over the classes of each
    kind.
    """
    if min(config.main_classes, default=0) < 1 or sum(config.main_classes) > classes:
        raise ConfigError(
            f"`partition.main_classes` must be numbers >= 1 that sum to at most {classes} classes,"
            f" got {list(config.main_classes)}."
        )
    if len(config.main_classes) > clients:
        raise ConfigError(
            f"`partition.main_classes` names {len(config.main_classes)} groups, but there are"
            f" only {clients} clients."
        )
    ends = np.cumsum(config.main_classes)
    group_of = np.concatenate(
        [
            np.full(len(piece), g)
            for g, piece in enumerate(np.array_split(np.arange(clients), len(ends)))
        ]
    )
    wants = np.empty((clients, classes))
    for client, g in enumerate(group_of):
        main = np.zeros(classes, dtype=bool)
        main[ends[g] - config.main_classes[g] : ends[g]] = True
        rest = 1.0 - config.main_share if (~main).any() else 0.0
        wants[client] = np.where(main, (1.0 - rest) / main.sum(), rest / max(1, (~main).sum()))
    stock = np.bincount(y, minlength=classes)
    demand = wants.sum(axis=0)
    feasible = int(np.floor((stock[demand > 0] / demand[demand > 0]).min() + 1e-9))
    size = feasible if config.samples_per_client is None else config.samples_per_client
    if size > feasible:
        raise ConfigError(
            f"`partition.samples_per_client`={size} is more than the {feasible} that the rarest"
            " class allows."
        )
    if size < config.min_samples:
        raise ConfigError(
            f"`partition.scheme=grouped` gives each client {size} samples here, fewer than"
            f" `partition.min_samples`={config.min_samples}. Lower it, or have fewer clients."
        )
    queues = {
        label: rng.permutation(np.flatnonzero(y == label)).tolist() for label in range(classes)
    }
    held = []
    for client in range(clients):
        counts = largest_remainder(wants[client], size)
        mine = [
            queues[label].pop()
            for label in range(classes)
            for _ in range(min(counts[label], len(queues[label])))
        ]
        held.append(np.array(mine, dtype=np.int64))
    return held


def quantity(
    y: Indices, classes: int, clients: int, config: PartitionConfig, rng: np.random.Generator
) -> list[Indices]:
    """Draw sizes from Dirichlet(alpha); every client's samples are a uniform draw of the pool."""
    counts = largest_remainder(dirichlet(config.alpha, clients, rng), len(y))
    return list(np.split(rng.permutation(len(y)), np.cumsum(counts)[:-1]))


SCHEMES: Final[dict[str, Scheme]] = {
    "iid": iid,
    "dirichlet": dirichlet_by_class,
    "pathological": pathological,
    "grouped": grouped,
    "quantity": quantity,
}


def natural(
    dataset: Dataset, pool: Indices, config: PartitionConfig, seed: int
) -> tuple[list[Indices], list[str]]:
    """Make every natural group of the data set a client.

    With `clients` below their number, a drawn subset.
    """
    groups = np.full(len(pool), -1) if dataset.groups is None else dataset.groups[pool]
    numbers = np.unique(groups[groups >= 0])
    if not len(numbers):
        raise ConfigError(
            f"`partition.scheme=natural` needs natural clients, which `{dataset.name}` does not"
            " name."
            " A NPZ file names them in `train_groups`, a table by one CSV file per client."
        )
    notes = []
    if config.clients is not None and config.clients > len(numbers):
        raise ConfigError(
            f"`partition.clients`={config.clients} is more than the {len(numbers)} natural"
            f" clients of `{dataset.name}`."
        )
    if config.clients is not None and config.clients < len(numbers):
        chosen = generator(seed, "partition", 0).choice(len(numbers), config.clients, replace=False)
        notes.append(f"partition: {config.clients} of {len(numbers)} natural clients were drawn.")
        numbers = numbers[np.sort(chosen)]
    dealt = [pool[groups == number] for number in numbers]
    small = sum(len(indices) < config.min_samples for indices in dealt)
    if small:
        notes.append(
            f"partition: {small} natural clients have fewer than {config.min_samples} samples;"
            " they stay."
        )
    return dealt, notes


def largest_remainder(shares: NDArray[np.float64], total: int) -> list[int]:
    """Return whole numbers that sum to `total`, each within one of its share of it."""
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    short = total - int(counts.sum())
    # Ties go to the lowest index, on any machine: the remainders are rounded before they are
    # compared.
    order = np.argsort(-np.round(exact - counts, 9), kind="stable")
    counts[order[:short]] += 1
    return [int(count) for count in counts]
