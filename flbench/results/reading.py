"""Reading the folder of a run, finished or not."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file
from flbench.core.csv_text import read_cell
from flbench.core.errors import DataError, UserError
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.results.summary import (
    Summary,
    best_round,
    cohort_accuracy,
    cost_to_reach,
    last_round,
    metrics_at,
    totals,
)

# Keys of summary.json that tables and reports need.
NEEDED: Final = ("algorithm", "dataset", "model", "seed", "last", "best", "communication")


@dataclass(frozen=True)
class Run:
    """The results of one run, as read from its folder.

    Attributes:
        path: The run folder.
        config: Configuration of the run.
        summary: Content of summary.json; for an unfinished run, those of its keys that can be
            computed from metrics.csv.
        rows: Rows of metrics.csv.
        classes: Rows of per_class.csv by column; empty for an unfinished run.
        finished: Whether the folder has a summary.json.
    """

    path: Path
    config: Config
    summary: Summary
    rows: list[Row]
    classes: list[dict[str, str]]
    finished: bool


def check_run_folder(path: Path) -> None:
    """Check that a path is a run folder: it has a config.yaml.

    Args:
        path: The path.

    Raises:
        UserError: The path does not exist or is not a run folder.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml.")


def is_finished(path: Path) -> bool:
    """Return whether a run folder has a summary.json, which is written last."""
    return (path / "summary.json").is_file()


def read(path: Path) -> Run:
    """Read a run folder.

    Args:
        path: The folder.

    Raises:
        UserError: The path is not a run folder, or its configuration is not valid.
        DataError: A file in the folder is damaged.
    """
    check_run_folder(path)
    config, _ = resolve([from_file(path / "config.yaml")])
    rows = metrics_file.read(path / "metrics.csv")
    if not is_finished(path):
        return Run(path, config, _so_far(config, rows), rows, [], finished=False)
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        classes = read_classes(path)
    except (OSError, ValueError) as error:
        raise DataError(f"the run folder {path} is damaged ({error}).") from error
    missing = [key for key in NEEDED if not isinstance(summary, dict) or key not in summary]
    if missing:
        raise DataError(
            f"{path / 'summary.json'} is damaged: it has no `{missing[0]}`. Remove it, and resume"
            f" the run: flbench run --resume {path}"
        )
    return Run(path, config, summary, rows, classes, finished=True)


def read_classes(path: Path) -> list[dict[str, str]]:
    """Return the rows of per_class.csv, each as a dict from column to text.

    Args:
        path: The run folder.

    Raises:
        OSError: The file cannot be read.
    """
    with (path / "per_class.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return [
        line | {"name": read_cell(line["name"])} if line.get("name") else line for line in lines
    ]


def _so_far(config: Config, rows: list[Row]) -> Summary:
    """Return the keys of a summary that are known before the run is finished."""
    last = last_round(rows) or 0
    best = best_round(rows)
    extra: Summary = {}
    if config.evaluation.target_accuracy is not None:
        extra["target"] = cost_to_reach(config.evaluation.target_accuracy, rows)
    if (cohort := cohort_accuracy(rows)) is not None:
        extra["cohort"] = cohort
    return {
        "algorithm": config.algorithm.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "seed": config.seed,
        "rounds": config.train.rounds,
        "last": metrics_at(rows, last),
        "best": metrics_at(rows, last if best is None else best),
        **totals(rows),
        **extra,
    }
