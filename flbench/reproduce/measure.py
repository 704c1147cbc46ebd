"""Numbers of a paper's tables, published and measured."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import fmean

from flbench.analysis.statistics import sample_std
from flbench.comparison.design import LabelledLayer
from flbench.comparison.folder import MARKER, read_cells, read_design
from flbench.config.sources import Layer
from flbench.core.errors import DataError
from flbench.jobs.folder import read_failures
from flbench.reproduce.paper import UNITS, Cell, Number, PaperMetric, Place, is_free
from flbench.results import reading
from flbench.results.metrics_file import Row
from flbench.results.summary import RunningSummary, cost_to_reach, training_failure


@dataclass
class Measured:
    """A cell of a table with its values.

    Attributes:
        cell: The cell.
        published: Number that the paper prints; None if it prints none.
        values: Measured values by seed, in the unit of the cell's metric.
        at_least: Lower bounds by seed, where no value could be measured: the round after the last
            one, if a run does not reach its target accuracy.
        runs: Folder of each run, by seed.
        why: Why a value is missing; "" if there is one for each run.
        by_test: Whether a target accuracy is one of the test parts, without validation parts.
    """

    cell: Cell
    published: Decimal | None
    values: dict[int, float] = field(default_factory=dict)
    at_least: dict[int, float] = field(default_factory=dict)
    runs: dict[int, Path] = field(default_factory=dict)
    why: str = ""
    by_test: bool = False

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
        return self.mean - float(self.published)


def comparison_of(place: Place, folder: Path) -> Path | None:
    """Return the comparison of a place below a folder; None if there is none."""
    for marker in sorted(folder.glob(f"*/{MARKER}")):
        if _key(read_design(marker.parent)[0].base) == _key(place.base):
            return marker.parent
    return None


def _key(base: Layer) -> dict[str, str]:
    """Return what tells the setting of a comparison from others."""
    return {key: str(given.value) for key, given in base.items() if not is_free(key)}


def label_of(place: Place, method: LabelledLayer, *, exact: bool = True) -> str | None:
    """Return the label in a place of a method of a comparison; None if it has none.

    Args:
        place: The place.
        method: The method, which may have got another label before.
        exact: Whether its keys must be those that it would have now; otherwise the label is enough.
    """
    key = _key(method.layer)
    equal = [label for label, layer in place.methods.items() if _key(layer) == key]
    if method.label in equal or (not exact and method.label in place.methods):
        return method.label
    return next(iter(equal), None)


def measured(
    cells: Iterable[Cell],
    published: Mapping[Number, Decimal],
    places: Collection[Place],
    folder: Path,
    *,
    exact: bool = True,
) -> list[Measured]:
    """Return cells with the values that the finished runs of their comparisons give."""
    runs: dict[tuple[int, str], dict[int, reading.StoredRun]] = {}
    reasons: dict[tuple[int, str], str] = {}
    for k, place in enumerate(places):
        path = comparison_of(place, folder)
        if path is None:
            continue
        methods = read_design(path)[0].methods
        labels = {one.label: label_of(place, one, exact=exact) for one in methods}
        failed = read_failures(path)
        for entry in read_cells(path):
            run = path / "cells" / entry.name
            if (label := labels[entry.method]) is None:
                continue
            row = (k, label)
            if reading.is_finished(run):
                try:
                    stored = reading.read(run)
                except DataError as error:
                    reasons.setdefault(row, str(error))
                    continue
                runs.setdefault(row, {})[stored.config.seed] = stored
            elif entry.name in failed:
                reasons.setdefault(row, failed[entry.name])
    found = []
    for cell in cells:
        one = Measured(cell, published.get(cell.number), why=cell.reason or "not run yet")
        for k, place in enumerate(places):
            row = (k, place.rows.get(cell.number, ""))
            whys = [_read_into(one, seed, run) for seed, run in runs.get(row, {}).items()]
            if whys or row in reasons:
                one.why = next(filter(None, [*whys, reasons.get(row, "")]), "")
        found.append(one)
    return found


def _read_into(one: Measured, seed: int, run: reading.StoredRun) -> str:
    """Add the value of a run to a cell, or return why it has none."""
    metric, target = one.cell.metric, run.config.evaluation.target_accuracy
    if failure := training_failure(run.summary):
        return failure
    one.runs[seed] = run.path
    if metric is not None and metric.over == "target":
        if target is None:
            return "evaluation.target_accuracy is not set"
        reached = cost_to_reach(target, run.rows)
        one.by_test |= reached["split"] == "test"
        if reached["round"] is None:
            one.at_least[seed] = float(run.config.train.rounds + 1)
            return f"not reached in {run.config.train.rounds} rounds"
        one.values[seed] = float(reached["round"])
        return ""
    value = None if metric is None else read(metric, run.rows, one.cell.at)
    if value is None:
        del one.runs[seed]
        return "its runs lack this metric"
    one.values[seed] = value
    return ""


def read(metric: PaperMetric, rows: Sequence[Row], at: int | None = None) -> float | None:
    """Return the value of a metric, in its unit; None if there are no lines of this metric.

    Args:
        metric: Metric to read.
        rows: Lines of a metrics.csv.
        at: Round after which the metric is read; None for the last evaluated round.
    """
    mine = [
        row
        for row in rows
        if row.metric in metric.metric
        and row.protocol == metric.protocol
        and metric.split in (None, row.split)
    ]
    if not mine:
        return None
    values = [row.value for row in mine]
    value: float | None
    match metric.over:
        case "sum":
            total = (
                1 if metric.per is None else sum(r.value for r in rows if r.metric == metric.per)
            )
            value = sum(values) / total if total else None
        case "mean":
            first = max(row.round for row in mine) - (metric.rounds or math.inf)
            value = fmean(row.value for row in mine if row.round > first)
        case "variance":
            mean = fmean(values)
            value = fmean((each - mean) ** 2 for each in values)
        case "max":
            value = max(values)
        case _:
            wanted = RunningSummary(list(rows)).last if at is None else at
            value = next((row.value for row in mine if row.round == wanted), None)
    return None if value is None else value * UNITS[metric.unit] / metric.divide
