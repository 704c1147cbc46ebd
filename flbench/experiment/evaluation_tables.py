"""Metrics of an evaluation as rows of the CSV files of a run folder."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from flbench.core.types import State
from flbench.data.federation import Federation
from flbench.experiment.predictions import Evaluation
from flbench.metrics.classification import Metrics, accuracy_group_mean, per_client
from flbench.results.metrics_file import Row
from flbench.results.reading import VALIDATION


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
        rows += rows_of(evaluation.round, part, protocol + suffix, mean)
    return rows


def rows_of(number: int, split: str, protocol: str, metrics: Metrics) -> list[Row]:
    """Return the metrics of round `number` as rows, without None and NaN."""
    return [
        Row(number, split, protocol, name, value)
        for name, value in metrics.items()
        if value is not None and value == value
    ]


def client_table(
    moment: str,
    federation: Federation,
    state: State,
    metrics: Mapping[str, Mapping[str, Sequence[float]]],
) -> list[dict[str, object]]:
    """Return the rows of clients.csv, each as a dict from column to cell.

    The column `name` is there for clients with names, `shift` for shifted samples, and `classes`
    for classes. Metrics of the validation part have the prefix `validation_`.

    Args:
        moment: `last` or `best`: the round that was evaluated.
        federation: Samples of all clients.
        state: The state that was evaluated, with the trainings and steps of each client.
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
            "steps": steps,
            **{name: values[client] for name, values in metrics["test"].items()},
            "validation_size": size["validation"][client],
            **{f"{VALIDATION}{k}": values[client] for k, values in metrics["validation"].items()},
        }
        for client, (count, steps) in enumerate(
            zip(state.participation_count.tolist(), state.steps.tolist(), strict=True)
        )
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
