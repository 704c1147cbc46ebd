"""Classification metrics, computed from confusion counts.

Balanced accuracy is the mean recall over the classes that occur. Macro F1 is the mean F1 over the
classes that occur or are predicted. A pooled metric is None if there are no samples for it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from flbench.metrics.confusion import ConfusionCounts

Metrics = dict[str, float | None]
"""Metrics by name; None where there are no samples."""


def per_class(confusion: Tensor) -> dict[str, Tensor]:
    """Return precision, recall, F1, support and predicted count of every class.

    `precision`, `recall` and `f1` are [C] float64 in [0, 1], and 0 where their denominator is 0;
    `support` and `predicted` are [C] int64.

    Args:
        confusion: Confusion matrix [C, C] int64; rows are true classes.

    >>> scores = per_class(torch.tensor([[3, 1], [0, 4]]))
    >>> scores["precision"].tolist(), scores["recall"].tolist()
    ([1.0, 0.8], [0.75, 1.0])
    """
    correct = confusion.diagonal()  # [C, C] -> [C]
    support, predicted = confusion.sum(dim=1), confusion.sum(dim=0)  # [C, C] -> [C] each
    return {
        "precision": _ratio(correct, predicted),
        "recall": _ratio(correct, support),
        "f1": _ratio(2 * correct, support + predicted),  # = 2 PR / (P + R)
        "support": support,
        "predicted": predicted,
    }


def pooled(
    counts: ConfusionCounts, rare: Iterable[int] = (), confusable: Iterable[int] = ()
) -> Metrics:
    """Return the metrics of all clients' predictions together; None where there are no samples.

    - `accuracy`, `balanced_accuracy` and `macro_f1`: over all samples.
    - `accuracy_mean`: mean of the clients' accuracies, over clients with samples.
    - `rare_recall`, `rare_precision`, `rare_f1`, `confusable_f1`: means over those of the rare or
      confusable classes that occur.
    - `worst10_accuracy`: mean accuracy of the worst tenth of the clients, at least of one.
    - `client_std`: population standard deviation of the clients' accuracies.
    - Three values of each metric of the user's own; see `OwnMetric.summary`.

    >>> matrices = torch.tensor([[[4, 0], [0, 4]], [[1, 1], [0, 0]]])
    >>> counts = ConfusionCounts.of_matrices(matrices)
    >>> metrics = pooled(counts)
    >>> metrics["accuracy"], metrics["accuracy_mean"], metrics["rare_f1"]
    (0.9, 0.75, None)
    """
    scores, own = per_class(counts.confusion), Metrics()
    for metric, values in counts.own.items():
        own |= metric.summary(metric(counts.confusion), values)
    clients = per_client(counts)["accuracy"][counts.evaluated]
    occurs = scores["support"] > 0
    seen = occurs | (scores["predicted"] > 0)
    total = int(counts.confusion.sum())
    worst = clients.sort().values[: -(-len(clients) // 10)]
    return {
        "accuracy": float(counts.confusion.diagonal().sum()) / total if total else None,
        "accuracy_mean": _mean(clients),
        "balanced_accuracy": _mean(scores["recall"][occurs]),
        "macro_f1": _mean(scores["f1"][seen]),
        "rare_recall": _mean(_of_present(scores["recall"], rare, occurs)),
        "rare_precision": _mean(_of_present(scores["precision"], rare, occurs)),
        "rare_f1": _mean(_of_present(scores["f1"], rare, occurs)),
        "confusable_f1": _mean(_of_present(scores["f1"], confusable, occurs)),
        "worst10_accuracy": _mean(worst),
        "client_std": float(clients.std(correction=0)) if len(clients) else None,
        **own,
    }


def accuracy_group_mean(counts: ConfusionCounts, groups: Tensor) -> float | None:
    """Return the mean over groups of clients of the accuracy over all samples of a group.

    Groups without samples do not count; None if there are no samples.

    Args:
        counts: Counts on one part of the samples.
        groups: Number of each client's group, [N] int64 >= 0.

    >>> matrices = torch.tensor([[[6, 0], [2, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 1]]])
    >>> counts = ConfusionCounts.of_matrices(matrices)
    >>> accuracy_group_mean(counts, torch.tensor([0, 0, 0]))  # 7 of 10 samples
    0.7
    >>> accuracy_group_mean(counts, torch.tensor([0, 1, 2]))  # mean of 6 of 8 and 1 of 2
    0.625
    """
    size = int(groups.max()) + 1
    correct, support = torch.zeros(2, size, dtype=torch.int64)
    correct.index_add_(0, groups, counts.correct.sum(dim=1))  # [N] -> [G]
    support.index_add_(0, groups, counts.support.sum(dim=1))  # [N] -> [G]
    return _mean(correct[support > 0].double() / support[support > 0])


def per_client(counts: ConfusionCounts) -> dict[str, Tensor]:
    """Return the metrics [N] float64 of every client's own predictions; NaN without samples.

    They are `accuracy`, `balanced_accuracy`, `macro_f1` and the metrics of the user's own.

    >>> counts = ConfusionCounts.of_matrices(torch.tensor([[[3, 1], [0, 0]], [[0, 0], [0, 0]]]))
    >>> per_client(counts)["accuracy"].tolist()
    [0.75, nan]
    """
    support, correct = counts.support.double(), counts.correct.double()
    # [N, C] each; NaN for classes that do not occur (and, for F1, are not predicted).
    recall = correct / support
    f1 = 2 * correct / (support + counts.predicted)  # = 2 PR / (P + R)
    return {
        "accuracy": correct.sum(dim=1) / support.sum(dim=1),
        "balanced_accuracy": recall.nanmean(dim=1),
        "macro_f1": f1.nanmean(dim=1),
        **{metric.name: values for metric, values in counts.own.items()},
    }


def personal_on_common(counts: ConfusionCounts, train_counts: Tensor) -> dict[str, Tensor]:
    """Return PM(V) and PM(L) of personal models on the common test set.

    Let n_c be the number of test samples of class c and correct_c the number that a client's model
    classifies correctly. PM(V) counts only the classes V that the client trains on:
    PM(V) = sum_{c in V} correct_c / sum_{c in V} n_c. PM(L) weights the classes by the share p_c of
    the client's training samples: PM(L) = sum_c p_c correct_c / sum_c p_c n_c.
    Source: FedNH (Dai et al., AAAI 2023).

    Args:
        counts: Counts on the common test set.
        train_counts: Training samples [N, C] by client and class.

    Returns:
        `pm_v` and `pm_l`, [N] float64 each; NaN for clients that were not evaluated.

    >>> counts = ConfusionCounts.of_matrices(torch.tensor([[[8, 2], [6, 4]]]))
    >>> both = personal_on_common(counts, torch.tensor([[3, 1]]))
    >>> both["pm_v"].tolist(), both["pm_l"].tolist()
    ([0.6], [0.7])
    """
    support, correct = counts.support.double(), counts.correct.double()
    present = (train_counts > 0).double()
    share = train_counts.double() / train_counts.sum(dim=1, keepdim=True).clamp_min(1)  # [N, C]
    return {
        "pm_v": (present * correct).sum(dim=1) / (present * support).sum(dim=1),
        "pm_l": (share * correct).sum(dim=1) / (share * support).sum(dim=1),
    }


def trained_class_share(counts: ConfusionCounts, train_counts: Tensor) -> Tensor:
    """Return the share of the common test set whose classes a client trains on.

    It bounds the accuracy of a model that predicts no other classes, such as a personal model that
    is never averaged with those of other clients. The shares are [N] float64 in [0, 1], and NaN for
    clients that were not evaluated; `train_counts` are the training samples [N, C].

    >>> counts = ConfusionCounts.of_matrices(torch.tensor([[[3, 0], [1, 0]]]))
    >>> trained_class_share(counts, torch.tensor([[5, 0]])).tolist()
    [0.75]
    """
    support = counts.support.double()  # [N, C]
    return ((train_counts > 0) * support).sum(dim=1) / support.sum(dim=1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide integers elementwise, as float64; 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator.double() / denominator.double(), 0.0)


def _mean(values: Tensor) -> float | None:
    """Return the mean of values [n]; None if there are none."""
    return float(values.mean()) if len(values) else None


def _of_present(scores: Tensor, classes: Iterable[int], occurs: Tensor) -> Tensor:
    """Return the scores, of all [C], of those of the given classes that occur ([C] bool)."""
    return scores[[k for k in classes if bool(occurs[k])]]
