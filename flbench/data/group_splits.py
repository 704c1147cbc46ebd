"""Splits of samples that belong together: those of a group, and windows of a text."""

import numpy as np

from flbench.data.partition import split_client
from flbench.data.schemes import Indices


def split_groups(
    indices: Indices,
    y: Indices,
    groups: Indices,
    ratios: tuple[float, float, float],
    rng: np.random.Generator,
) -> tuple[Indices, Indices, Indices]:
    """Split a client's samples into parts that have no group in common.

    The groups are split as `split_client` splits samples, and each part has one of three groups or
    more. The class of a group is the one that most of its samples have, and the first of several.

    Returns:
        The ascending rows of the three parts.

    >>> groups, y = np.array([7, 7, 7, 8, 8, 9]), np.zeros(6, dtype=int)
    >>> parts = split_groups(np.arange(6), y, groups, (0.6, 0.2, 0.2), np.random.default_rng(0))
    >>> sorted(len(set(groups[part])) for part in parts)
    [1, 1, 1]
    """
    names, owner = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), int(y.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(counts, (owner, y), 1)
    parts = list(split_client(np.arange(len(names)), counts.argmax(axis=1), ratios, rng))
    for k, ratio in enumerate(ratios):
        largest = int(np.argmax([len(part) for part in parts]))
        if ratio and not len(parts[k]) and len(parts[largest]) > 1:
            parts[largest], parts[k] = parts[largest][:-1], parts[largest][-1:]
    train, validation, test = (np.sort(indices[np.isin(owner, part)]) for part in parts)
    return train, validation, test


def split_by_position(
    indices: Indices, starts: Indices, span: int, ratios: tuple[float, float, float]
) -> tuple[Indices, Indices, Indices]:
    """Split a client's samples into parts that have no position of its text in common.

    The text is cut where the ratios say, and a part has the samples that lie between its cuts. If
    none lies before the first cut, the first sample is the training part.

    Returns:
        The ascending rows of the three parts.

    >>> starts = np.arange(12)
    >>> [part.tolist() for part in split_by_position(starts, starts, 3, (0.5, 0.25, 0.25))]
    [[0, 1, 2, 3, 4], [7], [10, 11]]
    """
    ends = starts + span
    length = int(ends.max()) if len(ends) else 0
    first = max(round(ratios[0] * length), int(ends.min()) if len(ends) else 0)
    second = max(first, round((ratios[0] + ratios[1]) * length))
    inside = (
        ends <= first,
        (starts >= first) & (ends <= second),
        (starts >= second) & (ratios[2] > 0),
    )
    train, validation, test = (np.sort(indices[mask]) for mask in inside)
    return train, validation, test
