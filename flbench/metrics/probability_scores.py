"""Metrics of predicted probabilities: ranking of samples by class, calibration, and proper scores.

All are exact and computed from the probabilities of all samples, which are kept until then. The
expected calibration error alone has bins, by its definition.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.metrics import ranking
from flbench.metrics.classification import Metrics
from flbench.metrics.names import PROBABILITY as NAMES
from flbench.metrics.probabilities import Probabilities

BINS: Final = 15
"""Bins of equal width of the expected calibration error."""


def pooled(probabilities: Probabilities) -> Metrics:
    """Return the metrics of all clients' samples together, and the means over clients.

    Values that are not defined are None.

    - `auroc_macro`: mean over the classes of the area under the ROC curve of a class against the
      rest, by the probability of the class; classes without samples, or without others, do not
      count. In [0, 1].
    - `ece`: expected calibration error in [0, 1]: |accuracy - mean confidence| of the samples in
      each of 15 bins of equal width, weighted by their number. The confidence is the largest
      probability.
    - `nll`: mean of -log p of the true class, at least 0.
    - `brier`: mean over samples of sum_c (p_c - [c is the true class])^2, in [0, 2].
    - `NAME_mean`: the mean over clients of each, from the clients' own samples.

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    >>> some = Probabilities(clients=1)
    >>> some.add_(torch.zeros(3, dtype=torch.int64), torch.tensor([0, 1, 2]), logits.log_softmax(1))
    >>> {name: round(value, 3) for name, value in pooled(some).items() if "mean" not in name}
    {'auroc_macro': 1.0, 'ece': 0.323, 'nll': 0.63, 'brier': 0.335}
    """
    found = probabilities.joined()
    if found is None:
        return {}
    client, true, logarithms = found
    together = _by_group(torch.zeros_like(client), true, logarithms, 1)
    apart = _by_group(client, true, logarithms, probabilities.clients)
    return ranking.with_means(together, apart)


def per_client(probabilities: Probabilities) -> dict[str, list[float]]:
    """Return the metrics of NAMES [N] of every client's own samples; NaN without samples."""
    found = probabilities.joined()
    if found is None:
        return {name: [float("nan")] * probabilities.clients for name in NAMES}
    apart = _by_group(*found, probabilities.clients)
    return {name: apart[name].tolist() for name in NAMES}


def _by_group(
    group: Tensor, true: Tensor, logarithms: Tensor, groups: int
) -> dict[str, NDArray[np.float64]]:
    """Return the metrics of NAMES [G] of groups of n samples; NaN if not defined."""
    values = logarithms.exp()  # [n, C]
    size = torch.bincount(group, minlength=groups).double()  # [G]
    is_true = torch.zeros_like(values).scatter_(1, true[:, None], 1.0)
    surprise = -logarithms.gather(1, true[:, None])[:, 0]
    brier = (values - is_true).square().sum(dim=1)
    confidence, predicted = values.max(dim=1)
    # [n]: a bin of a group
    place = group * BINS + (confidence * BINS).long().clamp_max(BINS - 1)
    excess = (predicted == true).double() - confidence
    gaps = torch.bincount(place, weights=excess, minlength=groups * BINS).reshape(groups, BINS)
    sums = {
        "ece": gaps.abs().sum(dim=1),
        "nll": torch.bincount(group, weights=surprise, minlength=groups),
        "brier": torch.bincount(group, weights=brier, minlength=groups),
    }
    found = {name: (total / size).numpy() for name, total in sums.items()}  # NaN without samples
    return {"auroc_macro": _auroc(group, true, logarithms, groups), **found}


def _auroc(group: Tensor, true: Tensor, logarithms: Tensor, groups: int) -> NDArray[np.float64]:
    """Return the mean over classes of the area under the ROC curve, [G]; NaN without a class."""
    classes = logarithms.shape[1]
    of_classes = (ranking.Margins(logarithms[:, k], true == k, group) for k in range(classes))
    areas = np.stack(
        [ranking.by_group(one, group, groups)["auroc"] for one in of_classes]
    )  # [C, G]
    is_known = ~np.isnan(areas)
    totals = np.where(is_known, areas, 0.0).sum(axis=0)
    mean = np.full(groups, np.nan)
    np.divide(totals, is_known.sum(axis=0), out=mean, where=is_known.any(axis=0))
    return mean
