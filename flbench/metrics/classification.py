"""Metrics of classification: pooled over clients by torchmetrics, and per client in closed form.

Definitions. Balanced accuracy: mean recall over the classes that occur. Macro F1: mean F1 over the
classes that occur or are predicted. A figure without samples is None.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from flbench.metrics.confusion import ConfusionCounts

Metrics = dict[str, float | None]


def per_class(confusion: Tensor) -> dict[str, Tensor]:
    """Return precision, recall, f1 float64, support, predicted int64, [C] each.

    By torchmetrics, on the pairs that the matrix counts; 0 where a denominator is 0.
    """
    from torchmetrics.functional.classification import (
        multiclass_f1_score,
        multiclass_precision,
        multiclass_recall,
    )

    classes = len(confusion)
    cells = confusion.nonzero()
    pairs = cells.repeat_interleave(confusion[cells[:, 0], cells[:, 1]], dim=0)
    target, predicted = pairs[:, 0], pairs[:, 1]
    figures = {
        "precision": multiclass_precision,
        "recall": multiclass_recall,
        "f1": multiclass_f1_score,
    }
    result = {
        name: score(predicted, target, num_classes=classes, average="none").double()
        if len(pairs)
        else torch.zeros(classes, dtype=torch.float64)
        for name, score in figures.items()
    }
    return {**result, "support": confusion.sum(dim=1), "predicted": confusion.sum(dim=0)}


def pooled(
    counts: ConfusionCounts, rare: Iterable[int] = (), confusable: Iterable[int] = ()
) -> Metrics:
    """Return the figures of all clients' predictions.

    Args:
        counts: counts of one part.
        rare: the rare classes.
        confusable: the confusable classes.
    Returns: accuracy (pooled), accuracy_mean (over clients with samples), balanced_accuracy,
        macro_f1, rare_recall, rare_f1, confusable_f1, worst10_accuracy (mean of the worst tenth of
        the clients, at least one), client_std (population).
    """
    scores = per_class(counts.confusion)
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
        "rare_recall": _mean(_of(scores["recall"], rare, occurs)),
        "rare_f1": _mean(_of(scores["f1"], rare, occurs)),
        "confusable_f1": _mean(_of(scores["f1"], confusable, occurs)),
        "worst10_accuracy": _mean(worst),
        "client_std": float(clients.std(correction=0)) if len(clients) else None,
    }


def per_client(counts: ConfusionCounts) -> dict[str, Tensor]:
    """Return accuracy, balanced accuracy, macro F1 [N] float64 by client; NaN without samples."""
    support, correct = counts.support.double(), counts.correct.double()
    recall = correct / support
    f1 = 2 * correct / (support + counts.predicted)  # = 2 PR / (P + R)
    return {
        "accuracy": correct.sum(dim=1) / support.sum(dim=1),
        "balanced_accuracy": recall.nanmean(dim=1),
        "macro_f1": f1.nanmean(dim=1),
    }


def personal_on_common(counts: ConfusionCounts, train_counts: Tensor) -> dict[str, Tensor]:
    """Return PM(V) and PM(L) [N] of personal models evaluated on the common test set.

    With correct_c and n_c of a client's model and test class: PM(V) = sum over the classes that the
    client trains on of correct_c / the same sum of n_c; PM(L) = sum_c p_c correct_c / sum_c p_c
    n_c, with p_c the client's training share of class c. Source: FedNH (AAAI 2023).

    Args:
        counts: counts on the common test set.
        train_counts: [N, C] training samples by client and class.
    """
    support, correct = counts.support.double(), counts.correct.double()
    present = (train_counts > 0).double()
    share = train_counts.double() / train_counts.sum(dim=1, keepdim=True).clamp_min(1)
    return {
        "pm_v": (present * correct).sum(dim=1) / (present * support).sum(dim=1),
        "pm_l": (share * correct).sum(dim=1) / (share * support).sum(dim=1),
    }


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _of(scores: Tensor, classes: Iterable[int], occurs: Tensor) -> Tensor:
    """Return the scores of those classes that occur in the part."""
    return scores[[k for k in classes if bool(occurs[k])]]
