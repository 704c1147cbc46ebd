"""Metrics of an evaluation as lines of metrics.csv, and the summary of those lines."""

from dataclasses import dataclass

from torch import Tensor

from flbench.experiment.evaluate import Evaluation
from flbench.metrics.classes import confusable_classes
from flbench.metrics.classification import (
    Metrics,
    per_class,
    per_client,
    personal_on_common,
    pooled,
)
from flbench.metrics.confusion import ConfusionCounts
from flbench.results.metrics_file import Row


@dataclass(frozen=True)
class ClassGroups:
    """Which classes figures single out.

    Attributes:
        rare: the rare classes.
        confusable: the confusable classes; None to find them in the run's own validation confusion.
        train_counts: [N, C] training samples by client and class.
    """

    rare: tuple[int, ...]
    confusable: tuple[int, ...] | None
    train_counts: Tensor

    def confusable_in(self, validation: ConfusionCounts | None) -> tuple[int, ...]:
        """Return the confusable classes, given the validation predictions of the evaluated model."""
        if self.confusable is not None:
            return self.confusable
        if validation is None or not int(validation.confusion.sum()):
            return ()
        return tuple(confusable_classes(validation.confusion))


def metric_rows(evaluation: Evaluation, class_groups: ClassGroups, suffix: str = "") -> list[Row]:
    """Return all figures of an evaluation; those without samples are left out.

    Args:
        evaluation: of one round.
        evaluation: which classes are singled out.
        suffix: of the protocols' names (`@local` right after local training).
    """
    confusable = class_groups.confusable_in(evaluation.local.get(("personal", "validation")))
    rows = []
    for (protocol, part), counts in evaluation.local.items():
        rows += _rows(
            evaluation.round, part, protocol + suffix, pooled(counts, class_groups.rare, confusable)
        )
    return rows + common_rows(evaluation, class_groups, suffix)


def common_rows(evaluation: Evaluation, class_groups: ClassGroups, suffix: str = "") -> list[Row]:
    """Return the figures on the common test set: GM, PM(V), PM(L), the personal models.

    PM(V) and PM(L) are means over the clients that were evaluated: all of them, or the cohort where
    the suffix is `@local` (FedNH's and FedPC's tables).
    """
    confusable = class_groups.confusable_in(evaluation.local.get(("personal", "validation")))
    rows = []
    for protocol, counts in evaluation.common.items():
        rows += _rows(
            evaluation.round,
            "common",
            protocol + suffix,
            pooled(counts, class_groups.rare, confusable),
        )
        if protocol == "personal":
            for name, values in personal_on_common(counts, class_groups.train_counts).items():
                spread: Metrics = {
                    "accuracy": float(values.nanmean()),
                    "client_std": float(values[~values.isnan()].std(correction=0)),
                }
                rows += _rows(evaluation.round, "common", name + suffix, spread)
    return rows


def _rows(number: int, split: str, protocol: str, figures: Metrics) -> list[Row]:
    return [
        Row(number, split, protocol, name, value)
        for name, value in figures.items()
        if value is not None and value == value
    ]


CLIENT_HEADER = (
    *("moment", "client", "train_size", "test_size", "classes", "trainings"),
    *("accuracy", "balanced_accuracy", "macro_f1"),
)
CLASS_HEADER = (
    *("moment", "class", "name", "train_support", "test_support"),
    *("precision", "recall", "f1", "rare", "confusable"),
)


def client_table(
    moment: str, counts: ConfusionCounts, train_counts: Tensor, participation_count: Tensor
) -> list[tuple[object, ...]]:
    """Return the lines of clients.csv: sizes, classes in training, trainings, test figures."""
    figures = per_client(counts)
    return [
        (
            moment,
            client,
            int(train_counts[client].sum()),
            int(counts.support[client].sum()),
            int((train_counts[client] > 0).sum()),
            int(participation_count[client]),
            *(
                float(figures[name][client])
                for name in ("accuracy", "balanced_accuracy", "macro_f1")
            ),
        )
        for client in range(len(train_counts))
    ]


def class_table(
    moment: str, evaluation: Evaluation, class_groups: ClassGroups, names: tuple[str, ...]
) -> list[tuple[object, ...]]:
    """Return the lines of per_class.csv: every class's support and pooled test figures."""
    figures = per_class(evaluation.local["personal", "test"].confusion)
    train = class_groups.train_counts.sum(dim=0)
    confusable = class_groups.confusable_in(evaluation.local["personal", "validation"])
    return [
        (
            moment,
            k,
            name,
            int(train[k]),
            int(figures["support"][k]),
            *(float(figures[key][k]) for key in ("precision", "recall", "f1")),
            int(k in class_groups.rare),
            int(k in confusable),
        )
        for k, name in enumerate(names)
    ]


def confusion_table(evaluation: Evaluation) -> list[tuple[object, ...]]:
    """Return the lines of confusion.csv: split, true class, predicted class, count above 0."""
    lines: list[tuple[object, ...]] = []
    for part in ("validation", "test"):
        confusion = evaluation.local["personal", part].confusion
        cells = confusion.nonzero().tolist()
        lines += [
            (part, true, predicted, int(confusion[true, predicted])) for true, predicted in cells
        ]
    return lines
