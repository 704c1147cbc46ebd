"""Metrics of an evaluation as rows of the CSV files of a run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from flbench.data.federation import Federation
from flbench.experiment.predictions import PARTS, Evaluation
from flbench.metrics.classes import confusable_classes
from flbench.metrics.classification import (
    Metrics,
    accuracy_group_mean,
    per_class,
    per_client,
    personal_on_common,
    pooled,
    trained_class_share,
)
from flbench.metrics.confusion import ConfusionCounts
from flbench.results.metrics_file import Row
from flbench.results.reading import VALIDATION


@dataclass(frozen=True)
class ClassGroups:
    """Groups of classes for which separate metrics are computed.

    Attributes:
        rare: Ids of the rare classes.
        confusable: Ids of the confusable classes; None to derive them from the validation confusion
            matrix of the evaluated models themselves.
        train_counts: Training samples [N, C] int64 by client and class.
    """

    rare: tuple[int, ...]
    confusable: tuple[int, ...] | None
    train_counts: Tensor

    def confusable_in(self, validation: ConfusionCounts | None) -> tuple[int, ...]:
        """Return the ids of the confusable classes for one evaluation.

        Args:
            validation: Validation counts of the evaluated personal models, if there are any.
        """
        if self.confusable is not None:
            return self.confusable
        if validation is None or not int(validation.confusion.sum()):
            return ()
        return tuple(confusable_classes(validation.confusion))


def metric_rows(evaluation: Evaluation, class_groups: ClassGroups, suffix: str = "") -> list[Row]:
    """Return all metrics of an evaluation as rows of metrics.csv, without those without samples.

    On the common test set `gm` is the global model. PM(V) and PM(L) are means over the evaluated
    clients of accuracies that are weighted by the client's training classes; see
    `personal_on_common`. The mean of `trained_class_share` stands beside the accuracies of the
    personal models. With the suffix `@local` the evaluated clients are the cohort, as in the tables
    of FedNH and FedPC.

    Args:
        evaluation: Counts after one round.
        class_groups: Groups of classes for which separate metrics are computed.
        suffix: Suffix of the protocols' names; `@local` marks an evaluation of the cohort right
            after local training.
    """
    rare, rows = class_groups.rare, []
    confusable = class_groups.confusable_in(evaluation.local.get(("personal", "validation")))
    common = {(protocol, "common"): counts for protocol, counts in evaluation.common.items()}
    for (protocol, part), counts in (evaluation.local | common).items():
        found = dict(pooled(counts, rare, confusable))
        if (margins := evaluation.margins.get((protocol, part))) is not None:
            from flbench.metrics import ranking

            found |= ranking.pooled(margins)
        if counts.probabilities is not None:
            from flbench.metrics import probability_scores

            found |= probability_scores.pooled(counts.probabilities)
        weighted: dict[str, Tensor] = {}
        if (protocol, part) == ("personal", "common"):
            train = class_groups.train_counts
            found["trained_class_share"] = float(trained_class_share(counts, train).nanmean())
            weighted = personal_on_common(counts, train)
        rows += _rows(evaluation.round, part, protocol + suffix, found)
        for name, values in weighted.items():
            mean_and_std: Metrics = {
                "accuracy": float(values.nanmean()),
                "client_std": float(values[~values.isnan()].std(correction=0)),
            }
            rows += _rows(evaluation.round, part, name + suffix, mean_and_std)
    return rows


def group_rows(evaluation: Evaluation, groups: Tensor, suffix: str) -> list[Row]:
    """Return the accuracy of a cohort as a mean over groups of clients, as rows of metrics.csv.

    Args:
        evaluation: Counts of the cohort's clients.
        groups: Group [N] int64 of every client.
        suffix: `@before`, `@local` or `@aggregated`: before local training, right after it, or
            after aggregation.
    """
    rows = []
    for (protocol, part), counts in evaluation.local.items():
        mean: Metrics = {"accuracy_group_mean": accuracy_group_mean(counts, groups)}
        rows += _rows(evaluation.round, part, protocol + suffix, mean)
    return rows


def _rows(number: int, split: str, protocol: str, metrics: Metrics) -> list[Row]:
    """Return the metrics of round `number` as rows, without None and NaN."""
    return [
        Row(number, split, protocol, name, value)
        for name, value in metrics.items()
        if value is not None and value == value
    ]


CLASS_HEADER = (
    *("moment", "class", "name", "train_support", "test_support"),
    *("precision", "recall", "f1", "rare", "confusable"),
)


def client_table(
    moment: str,
    federation: Federation,
    trainings: Tensor,
    metrics: Mapping[str, Mapping[str, Sequence[float]]],
) -> list[dict[str, object]]:
    """Return the rows of clients.csv, each as a dict from column to cell.

    The column `name` is there for clients with names, `shift` for shifted samples, and `classes`
    for classes. Metrics of the validation part have the prefix `validation_`.

    Args:
        moment: `last` or `best`: the round that was evaluated.
        federation: Samples of all clients.
        trainings: Number of trainings [N] that each client has completed.
        metrics: Metrics [N] of the personal models on the parts `test` and `validation`.
    """
    partition = federation.partition
    size = {part: [*map(len, rows)] for part, rows in partition.parts.items()}
    has_classes = federation.dataset.targets is None
    classes = (federation.counts > 0).sum(dim=1).tolist() if has_classes else []  # [N, C] -> [N]
    return [
        {
            "moment": moment,
            "client": client,
            **({"name": partition.names[client]} if partition.names else {}),
            **({"shift": partition.shifts[client]} if partition.shifts else {}),
            "train_size": size["train"][client],
            "test_size": size["test"][client],
            **({"classes": classes[client]} if has_classes else {}),
            "trainings": count,
            **{name: values[client] for name, values in metrics["test"].items()},
            "validation_size": size["validation"][client],
            **{f"{VALIDATION}{k}": values[client] for k, values in metrics["validation"].items()},
        }
        for client, count in enumerate(trainings.tolist())
    ]


def metrics_of_clients(evaluation: Evaluation, part: str) -> dict[str, list[float]]:
    """Return the metrics [N] of the personal models on a part.

    For two classes `auroc` and `average_precision` are among them, and with
    `evaluation.probabilities` those of `metric_names.PROBABILITY`.
    """
    counts = evaluation.local["personal", part]
    metrics = {name: values.tolist() for name, values in per_client(counts).items()}
    margins = evaluation.margins.get(("personal", part))
    if margins is not None:
        from flbench.metrics import ranking

        ranks = ranking.per_client(margins, len(counts.support))
        metrics |= {name: values.tolist() for name, values in ranks.items()}
    if counts.probabilities is not None:
        from flbench.metrics import probability_scores

        metrics |= probability_scores.per_client(counts.probabilities)
    return metrics


def class_table(
    moment: str, evaluation: Evaluation, class_groups: ClassGroups, names: tuple[str, ...]
) -> list[tuple[object, ...]]:
    """Return the rows of per_class.csv, in the order of CLASS_HEADER.

    Args:
        moment: `last` or `best`: the round that was evaluated.
        evaluation: Counts after that round; metrics are pooled over the clients' test parts.
        class_groups: Groups of classes to mark.
        names: Names of the C classes.
    """
    metrics = per_class(evaluation.local["personal", "test"].confusion)
    train = class_groups.train_counts.sum(dim=0).tolist()
    support, *shares = (metrics[key].tolist() for key in ("support", "precision", "recall", "f1"))
    rare = class_groups.rare
    confusable = class_groups.confusable_in(evaluation.local["personal", "validation"])
    return [
        (moment, k, name, *cells, int(k in rare), int(k in confusable))
        for k, (name, *cells) in enumerate(zip(names, train, support, *shares, strict=True))
    ]


def confusion_table(evaluation: Evaluation) -> list[tuple[object, ...]]:
    """Return the rows of confusion.csv: split, true class, predicted class, and a count above 0."""
    matrices = {part: evaluation.local["personal", part].confusion for part in PARTS}
    return [
        (part, true, predicted, int(matrix[true, predicted]))
        for part, matrix in matrices.items()
        for true, predicted in matrix.nonzero().tolist()
    ]
