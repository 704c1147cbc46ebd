"""Counts of correct and wrong predictions, from which all metrics are computed."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from flbench.metrics.own import OwnMetric


@dataclass(frozen=True)
class ConfusionCounts:
    """Counts of the predictions of all clients' models on one part of the samples.

    Attributes:
        support: Number of samples [N, C] int64 by client and true class.
        predicted: Number of samples [N, C] int64 by client and predicted class.
        correct: Number of correct predictions [N, C] int64 by client and class.
        confusion: Confusion matrix [C, C] int64 over all clients; rows are true classes, columns
            predicted classes.
        own: Values [N] float64 of the user's own metrics by metric; NaN for clients without one.
    """

    support: Tensor
    predicted: Tensor
    correct: Tensor
    confusion: Tensor
    own: dict[OwnMetric, Tensor] = field(default_factory=dict)

    @staticmethod
    def empty(clients: int, classes: int, metrics: tuple[OwnMetric, ...] = ()) -> "ConfusionCounts":
        """Return counts of zero.

        Args:
            clients: Number of clients N.
            classes: Number of classes C.
            metrics: Metrics of the user's own to compute for each client.
        """
        support, predicted, correct = torch.zeros(3, clients, classes, dtype=torch.int64)
        confusion = torch.zeros(classes, classes, dtype=torch.int64)
        unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
        own = {metric: unknown.clone() for metric in metrics}
        return ConfusionCounts(support, predicted, correct, confusion, own)

    def add_(self, ids: Tensor, confusions: Tensor) -> None:
        """Add the confusion matrices of some clients, in place.

        Args:
            ids: Different client ids [K] int64.
            confusions: Confusion matrices [K, C, C] of integers.

        >>> counts = ConfusionCounts.empty(clients=3, classes=2)
        >>> counts.add_(torch.tensor([1]), torch.tensor([[[3, 1], [0, 2]]]))
        >>> counts.correct.tolist()
        [[0, 0], [3, 2], [0, 0]]
        """
        # Sums of integers are int64, so there is no need for a copy of K matrices.
        self.support[ids] += confusions.sum(dim=2)  # [K, C, C] -> [K, C]
        self.predicted[ids] += confusions.sum(dim=1)  # [K, C, C] -> [K, C]
        self.correct[ids] += confusions.diagonal(dim1=1, dim2=2)  # [K, C, C] -> [K, C]
        self.confusion.add_(confusions.sum(dim=0))  # [K, C, C] -> [C, C]
        for metric, values in self.own.items():
            values[ids] = metric.of_clients(confusions)  # [K]

    @property
    def evaluated(self) -> Tensor:
        """[N] bool: True for clients that have samples in this part."""
        return self.support.sum(dim=1) > 0


def confusion(scores: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the confusion matrix [C, C] int32 of one batch.

    Args:
        scores: Scores [B, C]; the predicted class has the largest score.
        y: True classes [B] int64 in [0, C).
        mask: [B] bool; samples where it is False do not count.

    >>> scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> confusion(scores, torch.tensor([0, 1, 1]), torch.tensor([True, True, True])).tolist()
    [[1, 0], [1, 1]]
    """
    classes = scores.shape[1]
    cell = y * classes + scores.argmax(dim=1)  # [B], index of the cell in the flattened matrix
    flat = torch.zeros(classes * classes, dtype=torch.int32, device=y.device)
    return flat.index_add(0, cell, mask.to(torch.int32)).reshape(classes, classes)
