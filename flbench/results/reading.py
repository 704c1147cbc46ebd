"""What a run folder says: read back for tables, whether the run is finished or not."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file
from flbench.core.errors import DataError, UserError
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.results.summary import Summary, best_round, last_round, metrics_at, totals

# What tables and pages read of a summary.
NEEDED: Final = ("algorithm", "dataset", "model", "seed", "last", "best", "communication")


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        path: the folder.
        config: of the run.
        summary: summary.json, or as much of it as metrics.csv tells of an unfinished run.
        rows: the figures.
        classes: lines of per_class.csv; empty while unfinished.
        finished: whether summary.json is there.
    """

    path: Path
    config: Config
    summary: Summary
    rows: list[Row]
    classes: list[dict[str, str]]
    finished: bool


def check_run_folder(path: Path) -> None:
    """Raise a UserError if a path is not a run folder."""
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml.")


def read(path: Path) -> Run:
    """Read a run folder.

    Raises: UserError if it is none, DataError if a file in it is damaged.
    """
    check_run_folder(path)
    config, _ = resolve([from_file(path / "config.yaml")])
    rows = metrics_file.read(path / "metrics.csv")
    if not (path / "summary.json").is_file():
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
    """Return the lines of per_class.csv."""
    with (path / "per_class.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _so_far(config: Config, rows: list[Row]) -> Summary:
    last = last_round(rows) or 0
    best = best_round(rows)
    return {
        "algorithm": config.algorithm.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "seed": config.seed,
        "rounds": config.train.rounds,
        "last": metrics_at(rows, last),
        "best": metrics_at(rows, last if best is None else best),
        **totals(rows),
    }
