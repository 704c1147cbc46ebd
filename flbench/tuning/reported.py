"""What a trial reports after an evaluation: metrics, costs and time, by names of columns."""

from collections.abc import Mapping
from typing import Any

from flbench.results.metrics_file import Row
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import last_round, totals


def reported(
    rows: list[Row], seconds: Mapping[str, float], deployment: str, rounds: int
) -> dict[str, Any]:
    """Return the columns of a trial after its last evaluated round; nothing before the first.

    The validation metrics of the deployment are `val_METRIC`. If the test parts have been evaluated
    in this round, their metrics are `test_METRIC`. In the rounds before a method has the
    deployment, the metrics are those of the personal models.

    Args:
        rows: Rows of metrics.csv.
        seconds: Time that the trial has spent, by purpose.
        deployment: Name of the deployment.
        rounds: Number of rounds of a complete trial.

    Returns:
        `round`, the number of rounds done; the metrics; `loss`, the mean training loss of the last
        round; `up_bytes`, `down_bytes`, `peer_bytes` and `setup_bytes`, the sums over all rounds;
        `train_seconds`, `evaluate_seconds` and `seconds`, the whole time.

    >>> rows = [
    ...     Row(2, "train", "", "up_bytes", 80),
    ...     Row(2, "train", "", "loss", 1.5),
    ...     Row(2, "validation", "personal", "accuracy", 0.5),
    ... ]
    >>> found = reported(rows, {"train": 1.0, "evaluate": 0.5, "total": 2.0}, "personal", 4)
    >>> found["round"], found["val_accuracy"], found["loss"], found["up_bytes"], found["seconds"]
    (2, 0.5, 1.5, 80, 2.0)
    """
    number = last_round(rows)
    if number is None:
        return {}
    there = [row for row in rows if row.round == number]
    metrics: dict[str, float] = {}
    for split, prefix in (("validation", "val"), ("test", "test")):
        names = {row.protocol for row in there if row.split == split}
        protocol = deployment if deployment in names or number >= rounds else PERSONAL
        metrics |= {
            f"{prefix}_{row.metric}": row.value
            for row in there
            if (row.split, row.protocol) == (split, protocol)
        }
    loss = {row.metric: row.value for row in there if (row.split, row.metric) == ("train", "loss")}
    return {
        "round": number,
        **metrics,
        **loss,
        **totals([row for row in rows if row.round <= number])["communication"],
        "train_seconds": seconds.get("train", 0.0),
        "evaluate_seconds": seconds.get("evaluate", 0.0),
        "seconds": seconds.get("total", 0.0),
    }


def of_deployment(metric: str, deployment: str) -> str:
    """Return the name of a metric and of its deployment as text; `personal` is left out.

    >>> of_deployment("macro F1", "personal"), of_deployment("macro F1", "noft")
    ('macro F1', 'macro F1 of noft')
    """
    return metric if deployment == PERSONAL else f"{metric} of {deployment}"
