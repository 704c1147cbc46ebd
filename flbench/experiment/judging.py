"""The judge of a classification: confusion counts, and the metrics and tables made from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flbench.algorithms.base import Deployment
from flbench.config.schema import BestConfig
from flbench.core.types import State, StepContext, Tree
from flbench.data.federation import Federation
from flbench.data.schemes import Indices
from flbench.experiment.evaluation_tables import (
    CLASS_HEADER,
    ClassGroups,
    class_table,
    client_table,
    confusion_table,
    metric_rows,
    metrics_of_clients,
)
from flbench.experiment.predictions import PARTS, Evaluation, Predict
from flbench.metrics.confusion import ConfusionCounts
from flbench.results.metrics_file import Row

if TYPE_CHECKING:
    from flbench.metrics.own import OwnMetric


@dataclass(frozen=True)
class ClassJudge:
    """Judges predicted classes by confusion counts.

    `TargetJudge` judges the outputs for other targets. All else in an evaluation is the same.

    Attributes:
        federation: Samples of all clients.
        groups: Groups of classes for which separate metrics are computed.
        metrics: Metrics of the user's own.
        best: Section `evaluation.best`: validation accuracy chooses the best round.
        has_probabilities: Whether metrics of predicted probabilities are computed
            (`evaluation.probabilities`), on the clients' own parts.
    """

    federation: Federation
    groups: ClassGroups
    metrics: tuple["OwnMetric", ...] = ()
    best: BestConfig = BestConfig()
    has_probabilities: bool = False

    def observe(self, deployment: Deployment, part: str) -> Callable[[StepContext], Tree]:
        """Return the function of a Statistic that computes the predictions of a deployment.

        It maps a batch of the part `validation`, `test` or `common` to what `Predict` returns.
        """
        return Predict(
            deployment.weights,
            deployment.predict,
            self.federation.classes == 2,
            self.has_probabilities and part != "common",
        )

    def pairs(self, rows: Indices, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the true and the predicted classes [n] int64 for n rows of the data set."""
        return torch.from_numpy(self.federation.labels[rows]).long(), predicted.long()

    def scores(self, clients: int) -> ConfusionCounts:
        """Return the counts of N clients before the first prediction."""
        return ConfusionCounts.empty(
            clients,
            self.federation.classes,
            self.metrics,
            has_probabilities=self.has_probabilities,
        )

    @property
    def width(self) -> int:
        """Numbers that are kept of each sample: class, margin, NaN, and perhaps probabilities."""
        return 3 + (self.federation.classes if self.has_probabilities else 0)

    def of(self, federation: Federation) -> "ClassJudge":
        """Return the judge of another federation, with the same groups of classes."""
        groups = replace(self.groups, train_counts=federation.counts)
        return replace(self, federation=federation, groups=groups)

    def rows(self, evaluation: Evaluation, suffix: str = "") -> list[Row]:
        """Return the metrics of an evaluation as rows of metrics.csv; see `metric_rows`."""
        return metric_rows(evaluation, self.groups, suffix)

    def tables(
        self, evaluations: Mapping[str, tuple[Evaluation, State]]
    ) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
        """Yield name, header and lines of clients.csv, per_class.csv and confusion.csv.

        The argument has evaluation and evaluated state of the moment `last` and, if it is another
        round, of the moment `best`.
        """
        names, clients, classes = self.federation.dataset.classes, [], []
        for moment, (evaluation, evaluated) in evaluations.items():
            metrics = {part: metrics_of_clients(evaluation, part) for part in PARTS}
            count = evaluated.participation_count
            clients += client_table(moment, self.federation, count, metrics)
            classes += class_table(moment, evaluation, self.groups, names)
        last, _ = evaluations["last"]
        yield "clients.csv", tuple(clients[0]), [tuple(row.values()) for row in clients]
        yield "per_class.csv", CLASS_HEADER, classes
        yield "confusion.csv", ("split", "true", "predicted", "count"), confusion_table(last)
