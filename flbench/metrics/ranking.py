"""Metrics of the ranking of samples by a score, for data sets with two classes.

The score of a sample is the margin: the model's score of the second class minus that of the first.
The second class is the positive one. All metrics are exact: they are computed from the margins of
all samples, not from bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.metrics.classification import Metrics
from flbench.metrics.names import RANKING as NAMES


@dataclass(frozen=True)
class Margins:
    """The margins of all clients' models on one part of the samples.

    Attributes:
        value: Margin [n] of each sample, floating point.
        positive: [n] bool: whether the sample has the second class.
        client: Id [n] int64 of the client.
    """

    value: Tensor
    positive: Tensor
    client: Tensor

    @staticmethod
    def joined(parts: Sequence["Margins"]) -> "Margins":
        """Return the margins of several sets of clients as one."""
        values = zip(*((one.value, one.positive, one.client) for one in parts), strict=True)
        return Margins(*map(torch.cat, values))


def pooled(margins: Margins) -> Metrics:
    """Return the metrics of all clients' samples together, and the means over clients.

    `auroc` is the area under the ROC curve over the samples of all clients. Each client's own model
    gives its samples' margins, so it compares margins of different models, as does
    `average_precision`. `auroc_mean` and `average_precision_mean` are means over the clients that
    have samples of both classes. Metrics of samples of one class, or with margins of NaN, are None.

    >>> margins = Margins(
    ...     torch.tensor([0.1, 0.4, 0.35, 0.8]),
    ...     torch.tensor([False, False, True, True]),
    ...     torch.tensor([0, 0, 0, 0]),
    ... )
    >>> metrics = pooled(margins)
    >>> metrics["auroc"], round(metrics["average_precision"], 4)
    (0.75, 0.8333)
    """
    everybody = by_group(margins, torch.zeros_like(margins.client), 1)
    clients = per_client(margins, int(margins.client.max()) + 1 if len(margins.client) else 1)
    return with_means(everybody, clients)


def with_means(
    everybody: dict[str, NDArray[np.float64]], clients: dict[str, NDArray[np.float64]]
) -> Metrics:
    """Return metrics [1] of all samples, and their means over clients [N] as `NAME_mean`."""
    found: Metrics = {}
    for name, [value] in everybody.items():
        defined = clients[name][~np.isnan(clients[name])]
        found[name] = None if np.isnan(value) else float(value)
        found[f"{name}_mean"] = float(defined.mean()) if len(defined) else None
    return found


def per_client(margins: Margins, clients: int) -> dict[str, NDArray[np.float64]]:
    """Return `auroc` and `average_precision` [N] of every client's own samples; see `by_group`."""
    return by_group(margins, margins.client, clients)


def by_group(margins: Margins, group: Tensor, groups: int) -> dict[str, NDArray[np.float64]]:
    """Return `auroc` and `average_precision` [G] of groups [n] of samples; NaN if not defined."""
    value, owner = margins.value.double().numpy(), group.numpy()
    order = np.lexsort((-value, owner))  # by group, and by descending margin within a group
    value, owner = value[order], owner[order]
    hit = margins.positive.numpy()[order].astype(np.int64)
    size = np.bincount(owner, minlength=groups)  # [G]
    positives = np.bincount(owner, weights=hit, minlength=groups)  # [G]
    before = np.cumsum(size) - size  # samples of the groups before it
    hits_before = np.cumsum(positives) - positives
    # A threshold can lie behind each sample whose successor has a smaller margin: samples with
    # equal margins are on the same side of it.
    is_end = np.ones(len(value), dtype=bool)
    is_end[:-1] = (value[1:] != value[:-1]) | (owner[1:] != owner[:-1])
    end = np.flatnonzero(is_end)
    at = owner[end]  # [T] group of each threshold
    taken = end + 1 - before[at]  # samples of the group above the threshold
    true = np.cumsum(hit)[end] - hits_before[at]  # true positives above it
    false = taken - true
    first = np.ones(len(end), dtype=bool)  # the first threshold of each group
    first[1:] = at[1:] != at[:-1]
    last_true = np.where(first, 0, np.roll(true, 1))
    last_false = np.where(first, 0, np.roll(false, 1))
    trapezoid = (false - last_false) * (true + last_true) / 2
    step = (true - last_true) * true / taken  # recall gained, times precision
    area = np.bincount(at, weights=trapezoid, minlength=groups)
    precision = np.bincount(at, weights=step, minlength=groups)
    undefined = np.bincount(owner, weights=np.isnan(value), minlength=groups) > 0
    undefined |= (positives == 0) | (positives == size)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = area / (positives * (size - positives)), precision / positives
    return {
        name: np.where(undefined, np.nan, score) for name, score in zip(NAMES, scores, strict=True)
    }
