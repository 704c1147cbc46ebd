"""What scores a trial: the metrics of its personal models after each evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import RunningSummary


def metrics_at(rows: Sequence[Row], number: int) -> dict[str, float]:
    """Return the validation metrics of the personal models after one evaluated round, by name."""
    wanted = (number, "validation", PERSONAL)
    return {row.metric: row.value for row in rows if row[:3] == wanted}


def by_round(folder: Path, metric: str, missing: float) -> dict[int, float]:
    """Return the scores of a trial by the evaluated rounds, in order; none before the first.

    Args:
        folder: Its run folder.
        metric: Metric that scores the trial.
        missing: Score of a round without the metric.
    """
    file = folder / "metrics.csv"
    rows = metrics_file.read(file) if file.is_file() else []
    numbers = dict.fromkeys(row.round for row in rows if row.split == "validation")
    return {number: metrics_at(rows, number).get(metric, missing) for number in numbers}


def reported(rows: list[Row], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the columns of a trial after its last evaluated round; nothing before the first.

    Returns:
        `round`, the number of rounds done; `val_METRIC`; `loss`, the mean training loss of the last
        round; `up_bytes`, `down_bytes`, `peer_bytes` and `setup_bytes`, the sums over all rounds;
        `train_seconds`, `evaluate_seconds` and `seconds`, the whole time.

    >>> rows = [
    ...     Row(2, "train", "", "up_bytes", 80),
    ...     Row(2, "train", "", "loss", 1.5),
    ...     Row(2, "validation", "personal", "accuracy", 0.5),
    ... ]
    >>> found = reported(rows, {"train": 1.0, "evaluate": 0.5, "total": 2.0})
    >>> found["round"], found["val_accuracy"], found["loss"], found["up_bytes"], found["seconds"]
    (2, 0.5, 1.5, 80, 2.0)
    """
    number = RunningSummary(rows).last
    if number is None:
        return {}
    loss = {row.metric: row.value for row in rows if row[:4] == (number, "train", "", "loss")}
    return {
        "round": number,
        **{f"val_{name}": value for name, value in metrics_at(rows, number).items()},
        **loss,
        **RunningSummary([row for row in rows if row.round <= number]).totals()["communication"],
        "train_seconds": seconds.get("train", 0.0),
        "evaluate_seconds": seconds.get("evaluate", 0.0),
        "seconds": seconds.get("total", 0.0),
    }
