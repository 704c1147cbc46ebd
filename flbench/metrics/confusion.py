"""Counts of right and wrong predictions, from which every figure follows."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ConfusionCounts:
    """Predictions of all clients' models on one part.

    Attributes:
        support: [N, C] int64, samples by client and true class.
        predicted: [N, C] int64, samples by client and predicted class.
        correct: [N, C] int64, right predictions by client and class.
        confusion: [C, C] int64, over all clients; rows are true classes.
    """

    support: Tensor
    predicted: Tensor
    correct: Tensor
    confusion: Tensor

    @staticmethod
    def empty(clients: int, classes: int) -> "ConfusionCounts":
        """Return a tally without predictions."""
        support, predicted, correct = torch.zeros(3, clients, classes, dtype=torch.int64)
        confusion = torch.zeros(classes, classes, dtype=torch.int64)
        return ConfusionCounts(support, predicted, correct, confusion)

    def add_(self, ids: Tensor, confusions: Tensor) -> None:
        """Count the confusion matrices [K, C, C] of clients `ids` [K], in place."""
        confusions = confusions.long()
        self.support[ids] += confusions.sum(dim=2)
        self.predicted[ids] += confusions.sum(dim=1)
        self.correct[ids] += confusions.diagonal(dim1=1, dim2=2)
        self.confusion.add_(confusions.sum(dim=0))

    @property
    def evaluated(self) -> Tensor:
        """[N] bool: the clients that have samples in this part."""
        return self.support.sum(dim=1) > 0


def confusion(scores: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the confusion matrix [C, C] int32 of scores [B, C]; masked rows do not count."""
    classes = scores.shape[1]
    cell = y * classes + scores.argmax(dim=1)
    flat = torch.zeros(classes * classes, dtype=torch.int32, device=y.device)
    return flat.index_add(0, cell, mask.to(torch.int32)).reshape(classes, classes)
