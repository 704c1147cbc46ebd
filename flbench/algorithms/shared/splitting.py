"""When and how a cluster of clients is split by its clients' updates."""

from math import sqrt

import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from flbench.algorithms.shared.mixing import likeness
from flbench.core.tree import weighted_mean
from flbench.core.types import Tree

EQUAL = 1e-9  # cosines that differ by less say nothing


def norms(updates: Tree) -> tuple[float, float]:
    """Return the norm of the mean update and the largest norm of one; a leaf's rows are [K, ...].

    All leaves of a client are one vector; K >= 1.
    """
    clients = len(next(iter(updates.values())))
    mean = weighted_mean(updates, torch.ones(clients))
    squares = torch.zeros(clients, dtype=torch.float64)
    for value in updates.values():
        norm = torch.linalg.vector_norm(value.reshape(clients, -1), dim=1, dtype=torch.float64)
        squares += norm.square()
    of_mean = sum(float(value.double().square().sum()) for value in mean.values())
    return sqrt(of_mean), sqrt(float(squares.max()))


def bipartition(updates: Tree) -> Tensor:
    """Return [K] bool: the clients that leave the first one's side; nobody where all are alike.

    Complete-linkage clustering into two groups, on the cosines of updates [K, ...].
    """
    cosines = likeness(updates, updates)
    clients = len(cosines)
    others = cosines[~torch.eye(clients, dtype=torch.bool)]
    if clients < 2:
        return torch.zeros(clients, dtype=torch.bool)
    most = others.max() if clients > 2 else 1.0  # of two, the one cosine has none to differ from
    if float(most - others.min()) < EQUAL:
        return torch.zeros(clients, dtype=torch.bool)
    # A cosine may exceed 1 by rounding, and scipy wants no distance below 0.
    far = (1.0 - cosines).clamp_min(0.0).fill_diagonal_(0.0)
    distance = squareform(far.numpy(), checks=False)
    label = torch.from_numpy(cut_tree(linkage(distance, "complete"), 2)[:, 0].copy())
    return label != label[0]
