"""Reads the numbers of a paper's cells from the runs that measure them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

from flbench.analysis.statistics import sample_std
from flbench.core.errors import UserError
from flbench.reports.tables import target_text
from flbench.reproduce.plan import PaperPlan, PlannedCell
from flbench.reproduce.runs import RunResults
from flbench.reproduce.schema import PaperMetric
from flbench.results import reading
from flbench.results.metrics_file import Row
from flbench.results.summary import cost_to_reach, last_round, training_failure

NOT_YET: Final = "not run yet"


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with its published number and its measured values.

    Attributes:
        planned: The cell and its runs.
        values: Measured values by seed, in the unit of the cell's metric.
        at_least: Lower bounds by seed, where no value could be measured: the round after the last
            one, if a run does not reach its target accuracy.
        splits: Samples that a target accuracy was measured on: `validation`, or `test` without a
            validation part. Empty for other metrics.
        why: Why values are missing; None if there is one for each seed.
        lacks: What is missing: a method, a data set, a metric or a run; "" if `why` is None.
        folders: Folder of each run, by seed.
    """

    planned: PlannedCell
    values: Mapping[int, float]
    why: str | None
    lacks: str
    folders: Mapping[int, Path]
    at_least: Mapping[int, float] = field(default_factory=dict)
    splits: frozenset[str] = frozenset()

    @property
    def published(self) -> float | None:
        """Number that the paper prints; None if it prints none."""
        return self.planned.cell.published

    @property
    def mean(self) -> float | None:
        """Mean of the measured values over seeds; None without a value."""
        return fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds with the divisor n - 1; None for fewer than two values."""
        return sample_std(list(self.values.values()))

    @property
    def difference(self) -> float | None:
        """Measured mean minus published number, in the unit of the metric; None if one lacks."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published


def lines(plan: PaperPlan, done: RunResults) -> list[MeasuredCell]:
    """Return the plan's cells with the values that their runs give."""
    reader = _Reader()
    return [_line(item, done, reader) for item in plan.cells]


def _line(item: PlannedCell, done: RunResults, reader: "_Reader") -> MeasuredCell:
    cell = item.cell
    values: dict[int, float] = {}
    at_least: dict[int, float] = {}
    folders: dict[int, Path] = {}
    splits: set[str] = set()
    missing = [] if item.absent is None else [(item.absent, item.lacks)]
    for seed, job in item.jobs.items():
        if job.name not in done.folders:
            default = NOT_YET if item.wanted else "not requested (--algo)"
            missing.append((done.failures.get(job.name, default), f"{cell.row} on {cell.dataset}"))
            continue
        folder = done.folders[job.name]
        result = reader.value(folder, item)
        splits |= {result.split} if result.split else set()
        if result.value is None:
            missing.append((str(result.why), f"{cell.row}, {cell.column}"))
        else:
            values[seed], folders[seed] = result.value, folder
        if result.at_least is not None:
            at_least[seed], folders[seed] = result.at_least, folder
    why, lacks = missing[0] if missing else (None, "")
    return MeasuredCell(item, values, why, lacks, folders, at_least, frozenset(splits))


@dataclass(frozen=True)
class _Reading:
    """What a run says about a cell.

    Attributes:
        value: The value; None if there is none.
        why: Why there is none.
        at_least: Lower bound of a value that is not known; None without one.
        split: Samples that a target accuracy was measured on; None for other metrics.
    """

    value: float | None = None
    why: str | None = None
    at_least: float | None = None
    split: str | None = None


class _Reader:
    """Reads run folders, each of them once."""

    def __init__(self) -> None:
        self._runs: dict[Path, reading.StoredRun | str] = {}

    def value(self, folder: Path, item: PlannedCell) -> _Reading:
        """Return the value of a cell in a run, or why there is none."""
        if folder not in self._runs:
            try:
                self._runs[folder] = reading.read(folder)
            except UserError as error:
                self._runs[folder] = str(error)
        run, paper_metric = self._runs[folder], item.cell.metric
        if isinstance(run, str):
            return _Reading(why=run)
        if paper_metric is None:
            return _Reading(why="no metric")
        if failure := training_failure(run.summary):
            return _Reading(why=failure)
        if paper_metric.over == "target":
            return _rounds_to_target(run)
        at = None
        if item.cell.at is not None:
            at = round_of(item.cell.at, item.rounds, run.config.train.rounds)
        value = read(paper_metric, run.rows, at)
        if value is not None:
            return _Reading(value)
        parts = (paper_metric.split or "all", paper_metric.protocol or "-", *paper_metric.metric)
        when = "" if at is None else f" at round {at}"
        return _Reading(why=f"its runs lack this metric ({', '.join(parts)}{when})")


def _rounds_to_target(run: reading.StoredRun) -> _Reading:
    """Return the round in which a run reaches `evaluation.target_accuracy`."""
    target = run.config.evaluation.target_accuracy
    if target is None:
        return _Reading(why="evaluation.target_accuracy is not set")
    reached = cost_to_reach(target, run.rows)
    if reached["round"] is not None:
        return _Reading(float(reached["round"]), split=reached["split"])
    rounds = run.config.train.rounds
    why = f"{target_text(reached)} in {rounds} rounds"
    return _Reading(why=why, at_least=float(rounds + 1), split=reached["split"])


def round_of(printed: int, of: int, rounds: int) -> int:
    """Scale a round of the paper's run to a run of another length.

    Args:
        printed: Round of the paper's run.
        of: Number of rounds of the paper's run; 0 if unknown, then `printed` is returned.
        rounds: Number of rounds of the run here.

    >>> round_of(100, 200, 50)
    25
    """
    return max(1, round(printed * rounds / of)) if of else printed


def read(paper_metric: PaperMetric, rows: Sequence[Row], at: int | None = None) -> float | None:
    """Return the value of a metric, in its unit; None if there are no lines of this metric.

    Args:
        paper_metric: Metric to read.
        rows: Lines of a metrics.csv.
        at: Round after which the metric is read; None for the last evaluated round.
    """
    mine = [
        row
        for row in rows
        if row.metric in paper_metric.metric
        and row.protocol == paper_metric.protocol
        and paper_metric.split in (None, row.split)
    ]
    if not mine:
        return None
    values = [row.value for row in mine]
    if paper_metric.over == "sum":
        value: float | None = sum(values)
        if paper_metric.per is not None:
            total = sum(row.value for row in rows if row.metric == paper_metric.per)
            value = sum(values) / total if total else None
    elif paper_metric.over == "mean":
        first = max(row.round for row in mine) - (paper_metric.rounds or math.inf)
        value = fmean(row.value for row in mine if row.round > first)
    elif paper_metric.over == "variance":
        mean = fmean(values)
        value = fmean((each - mean) ** 2 for each in values)
    elif paper_metric.over == "max":
        value = max(values)
    else:
        wanted = last_round(list(rows)) if at is None else at
        value = next((row.value for row in mine if row.round == wanted), None)
    return None if value is None else value * paper_metric.scale / paper_metric.divide


def dealt(folder: Path) -> int | None:
    """Return the number of samples of all clients of a run; None if partition.json is missing."""
    try:
        parts = json.loads((folder / "partition.json").read_text(encoding="utf-8"))["samples"]
        return sum(sum(sizes) for sizes in parts.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
