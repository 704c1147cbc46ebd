"""The judge of a classification: confusion counts, and the metrics and tables made from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flbench.algorithms.base import Deployment
from flbench.config.schema import BestConfig
from flbench.core.types import Context, State, Tree
from flbench.data.federation import Federation
from flbench.data.schemes import Indices
from flbench.experiment.evaluation_tables import client_table, metrics_of_clients, rows_of
from flbench.experiment.predictions import PARTS, Evaluation, Predict
from flbench.metrics.classes import confusable_classes
from flbench.metrics.classification import (
    Metrics,
    per_class,
    personal_on_common,
    pooled,
    trained_class_share,
)
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
        rare: Ids of the rare classes, for which separate metrics are computed.
        confusable: Ids of the confusable classes, for which they are computed too; None to derive
            them from the validation confusion matrix of the evaluated models themselves.
        metrics: Metrics of the user's own.
        best: Section `evaluation.best`: validation accuracy chooses the best round.
        has_probabilities: Whether metrics of predicted probabilities are computed
            (`evaluation.probabilities`), on the clients' own parts.
    """

    federation: Federation
    rare: tuple[int, ...]
    confusable: tuple[int, ...] | None
    metrics: tuple["OwnMetric", ...] = ()
    best: BestConfig = BestConfig()
    has_probabilities: bool = False

    def observe(self, deployment: Deployment, part: str) -> Callable[[Context], Tree]:
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
        return replace(self, federation=federation)

    def rows(self, evaluation: Evaluation, suffix: str = "") -> list[Row]:
        """Return the metrics of an evaluation as rows of metrics.csv, without those without value.

        On the common test set `gm` is the global model. PM(V) and PM(L) are means over the
        evaluated clients of accuracies that are weighted by the client's training classes; see
        `personal_on_common`. The mean of `trained_class_share` stands beside the accuracies of the
        personal models. With the suffix `@local` the evaluated clients are the cohort right after
        local training, as in the tables of FedNH and FedPC.
        """
        train, rows = self.federation.counts, list[Row]()
        confusable = self._confusable_in(evaluation)
        common = {(protocol, "common"): counts for protocol, counts in evaluation.common.items()}
        for (protocol, part), counts in (evaluation.local | common).items():
            found = dict(pooled(counts, self.rare, confusable))
            if (margins := evaluation.margins.get((protocol, part))) is not None:
                from flbench.metrics import ranking

                found |= ranking.pooled(margins)
            if counts.probabilities is not None:
                from flbench.metrics import probability_scores

                found |= probability_scores.pooled(counts.probabilities)
            weighted: dict[str, Tensor] = {}
            if (protocol, part) == ("personal", "common"):
                found["trained_class_share"] = float(trained_class_share(counts, train).nanmean())
                weighted = personal_on_common(counts, train)
            rows += rows_of(evaluation.round, part, protocol + suffix, found)
            for name, values in weighted.items():
                mean_and_std: Metrics = {
                    "accuracy": float(values.nanmean()),
                    "client_std": float(values[~values.isnan()].std(correction=0)),
                }
                rows += rows_of(evaluation.round, part, name + suffix, mean_and_std)
        return rows

    def tables(
        self, evaluations: Mapping[str, tuple[Evaluation, State]]
    ) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
        """Yield name, header and lines of clients.csv, per_class.csv and confusion.csv.

        The argument has evaluation and evaluated state of the moment `last` and, if it is another
        round, of the moment `best`.
        """
        clients, classes = [], []
        for moment, (evaluation, evaluated) in evaluations.items():
            metrics = {part: metrics_of_clients(evaluation, part) for part in PARTS}
            clients += client_table(moment, self.federation, evaluated, metrics)
            classes += self._classes(moment, evaluation)
        yield "clients.csv", tuple(clients[0]), [tuple(row.values()) for row in clients]
        yield "per_class.csv", tuple(classes[0]), [tuple(row.values()) for row in classes]
        last, _ = evaluations["last"]
        matrices = {part: last.local["personal", part].confusion for part in PARTS}
        counts = [
            (part, true, predicted, int(matrix[true, predicted]))
            for part, matrix in matrices.items()
            for true, predicted in matrix.nonzero().tolist()
        ]
        yield "confusion.csv", ("split", "true", "predicted", "count"), counts

    def _classes(self, moment: str, evaluation: Evaluation) -> list[dict[str, object]]:
        """Return the rows of per_class.csv; metrics are pooled over the clients' test parts.

        A class without test samples has neither recall nor F1.
        """
        metrics = per_class(evaluation.local["personal", "test"].confusion)
        support, precision, recall, f1 = (
            metrics[k].tolist() for k in ("support", "precision", "recall", "f1")
        )
        train = self.federation.counts.sum(dim=0).tolist()  # [N, C] -> [C]
        confusable = self._confusable_in(evaluation)
        return [
            {
                "moment": moment,
                "class": k,
                "name": name,
                "train_support": train[k],
                "test_support": support[k],
                "precision": precision[k],
                "recall": recall[k] if support[k] else None,
                "f1": f1[k] if support[k] else None,
                "rare": int(k in self.rare),
                "confusable": int(k in confusable),
            }
            for k, name in enumerate(self.federation.dataset.classes)
        ]

    def _confusable_in(self, evaluation: Evaluation) -> tuple[int, ...]:
        """Return the ids of the confusable classes of an evaluation."""
        if self.confusable is not None:
            return self.confusable
        validation = evaluation.local.get(("personal", "validation"))
        if validation is None or not int(validation.confusion.sum()):
            return ()
        return tuple(confusable_classes(validation.confusion))
