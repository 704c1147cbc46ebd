"""Counts of correct and wrong predictions, from which all metrics are computed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flbench.metrics.own import OwnMetric
    from flbench.metrics.probabilities import Probabilities


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
        probabilities: Predicted probabilities of the same samples; None if they are not kept.
    """

    support: Tensor
    predicted: Tensor
    correct: Tensor
    confusion: Tensor
    own: dict["OwnMetric", Tensor] = field(default_factory=dict)
    probabilities: "Probabilities | None" = None

    @staticmethod
    def empty(
        clients: int,
        classes: int,
        metrics: tuple["OwnMetric", ...] = (),
        *,
        has_probabilities: bool = False,
    ) -> "ConfusionCounts":
        """Return counts of zero.

        Metrics of the user's own are computed for each client, and predicted probabilities are kept
        on request.
        """
        support, predicted, correct = torch.zeros(3, clients, classes, dtype=torch.int64)
        confusion = torch.zeros(classes, classes, dtype=torch.int64)
        unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
        own = {metric: unknown.clone() for metric in metrics}
        probabilities = None
        if has_probabilities:
            from flbench.metrics.probabilities import Probabilities

            probabilities = Probabilities(clients)
        return ConfusionCounts(support, predicted, correct, confusion, own, probabilities)

    @staticmethod
    def of_matrices(confusions: Tensor) -> "ConfusionCounts":
        """Return the counts of N clients with confusion matrices [N, C, C], without own metrics.

        >>> counts = ConfusionCounts.of_matrices(torch.tensor([[[0, 0], [0, 0]], [[3, 1], [0, 2]]]))
        >>> counts.correct.tolist()
        [[0, 0], [3, 2]]
        """
        return ConfusionCounts(
            support=confusions.sum(dim=2),  # [N, C, C] -> [N, C]
            predicted=confusions.sum(dim=1),  # [N, C, C] -> [N, C]
            correct=confusions.diagonal(dim1=1, dim2=2).clone(),  # [N, C, C] -> [N, C]
            confusion=confusions.sum(dim=0),  # [N, C, C] -> [C, C]
        )

    def add_(self, client: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add the predictions of n samples, in place.

        Args:
            client: Id [n] int64 of each sample's client. Metrics of the user's own need all samples
                of a client in one call.
            true: True classes [n] int64 in [0, C).
            predicted: Predicted classes [n] int64 in [0, C).

        >>> counts = ConfusionCounts.empty(clients=3, classes=2)
        >>> counts.add_(torch.tensor([1, 1, 1]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
        >>> counts.correct.tolist(), counts.confusion.tolist()
        ([[0, 0], [1, 1], [0, 0]], [[1, 1], [0, 1]])
        """
        is_right = true == predicted
        for counts, cells in (
            (self.support, _cells(self.support, client, true)),
            (self.predicted, _cells(self.predicted, client, predicted)),
            (self.correct, _cells(self.correct, client, true)[is_right]),
            (self.confusion, _cells(self.confusion, true, predicted)),
        ):
            counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
        if self.own:
            order = client.argsort(stable=True)
            sizes = torch.bincount(client).tolist()
            for k, some in enumerate(torch.split(order, sizes)):
                if not len(some):
                    continue
                matrix = confusion(true[some], predicted[some], len(self.confusion))
                for metric, values in self.own.items():
                    values[k] = metric(matrix)

    def add_probabilities_(self, client: Tensor, true: Tensor, logarithms: Tensor) -> None:
        """Keep predicted probabilities of n samples; see `Probabilities.add_`."""
        if self.probabilities is not None:
            self.probabilities.add_(client, true, logarithms)

    def add_shared_(self, ids: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add the predictions [n] of one model, which the clients `ids` [K] share, in place."""
        one = ConfusionCounts.empty(1, len(self.confusion), tuple(self.own))
        one.add_(torch.zeros_like(true), true, predicted)
        self.support[ids] += one.support  # [K, C] += [1, C]
        self.predicted[ids] += one.predicted
        self.correct[ids] += one.correct
        self.confusion.add_(one.confusion, alpha=len(ids))
        for metric, values in self.own.items():
            values[ids] = one.own[metric]

    @property
    def evaluated(self) -> Tensor:
        """[N] bool: True for clients that have samples in this part."""
        return self.support.sum(dim=1) > 0


def confusion(true: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return the confusion matrix [C, C] int64 of classes [n] in [0, C); rows are true classes.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), classes=2).tolist()
    [[1, 0], [1, 1]]
    """
    cells = true * classes + predicted
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _cells(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the indices [n] of the cells (rows, columns) of a flattened matrix."""
    return rows * matrix.shape[1] + columns
