"""Figures of papers, read of the runs that measure them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from flbench.core.errors import UserError
from flbench.reports.statistics import spread
from flbench.reproduce.plan import Plan, Planned
from flbench.reproduce.runs import Done
from flbench.reproduce.schema import Figure
from flbench.results import reading
from flbench.results.metrics_file import Row
from flbench.results.summary import last_round

NOT_YET: Final = "not run yet"


@dataclass(frozen=True)
class Line:
    """A cell as published and as measured.

    Attributes:
        planned: the cell.
        values: by seed, in the figure's unit.
        why: why there are none, or fewer than asked for; None if all are there.
        lacks: what is missing then: a method, a data set, a figure, a run.
        folders: of the runs, by seed.
    """

    planned: Planned
    values: Mapping[int, float]
    why: str | None
    lacks: str
    folders: Mapping[int, Path]

    @property
    def published(self) -> float | None:
        """What the paper prints."""
        return self.planned.cell.published

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return fmean(self.values.values()) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1); None for fewer than two."""
        return spread(list(self.values.values()))

    @property
    def difference(self) -> float | None:
        """Measured mean minus published figure."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published


def lines(plan: Plan, done: Done) -> list[Line]:
    """Return the plan's cells with what their runs say."""
    reader = _Reader()
    return [_line(item, done, reader) for item in plan.cells]


def _line(item: Planned, done: Done, reader: "_Reader") -> Line:
    cell = item.cell
    values: dict[int, float] = {}
    folders: dict[int, Path] = {}
    missing = [] if item.absent is None else [(item.absent, item.lacks)]
    for seed, job in item.jobs.items():
        if job.key not in done.folders:
            silent = NOT_YET if item.wanted else "not asked for (--algos)"
            missing.append((done.troubles.get(job.key, silent), f"{cell.row} on {cell.dataset}"))
            continue
        folder = done.folders[job.key]
        value, why = reader.value(folder, item)
        if value is None:
            missing.append((str(why), f"{cell.row}, {cell.column}"))
        else:
            values[seed], folders[seed] = value, folder
    why, lacks = missing[0] if missing else (None, "")
    return Line(item, values, why, lacks, folders)


class _Reader:
    """Reads run folders, each once."""

    def __init__(self) -> None:
        self._runs: dict[Path, reading.Run | str] = {}

    def value(self, folder: Path, item: Planned) -> tuple[float | None, str | None]:
        """Return a cell's figure in a run, or why it has none."""
        if folder not in self._runs:
            try:
                self._runs[folder] = reading.read(folder)
            except UserError as error:
                self._runs[folder] = str(error)
        run, figure = self._runs[folder], item.cell.figure
        if isinstance(run, str):
            return None, run
        if figure is None:
            return None, "no figure"
        vain = run.summary["diverged"] + run.summary["trainings_without_step"]
        if vain and vain == run.summary["client_trainings"]:
            return None, "no client finished a training"
        at = None
        if item.cell.at is not None:
            at = round_of(item.cell.at, item.rounds, run.config.train.rounds)
        value = read(figure, run.rows, at)
        if value is not None:
            return value, None
        what = f"{figure.split or 'all'}, {figure.protocol or '-'}, {', '.join(figure.metric)}"
        when = "" if at is None else f" at round {at}"
        return None, f"its runs have no such figure ({what}{when})"


def round_of(printed: int, of: int, rounds: int) -> int:
    """Return the round of a run of `rounds` for round `printed` of the paper's run of `of`."""
    return max(1, round(printed * rounds / of)) if of else printed


def read(figure: Figure, rows: Sequence[Row], at: int | None = None) -> float | None:
    """Return a figure in its unit, of the lines of a metrics.csv; None if it has no such lines.

    Args:
        figure: what to read.
        rows: the lines.
        at: the round after which it is read; None for the last that was judged.
    """
    mine = [
        row
        for row in rows
        if row.metric in figure.metric
        and row.protocol == figure.protocol
        and figure.split in (None, row.split)
    ]
    if not mine:
        return None
    values = [row.value for row in mine]
    if figure.over == "sum":
        found: float | None = sum(values)
        if figure.per is not None:
            total = sum(row.value for row in rows if row.metric == figure.per)
            found = sum(values) / total if total else None
    elif figure.over == "mean":
        found = fmean(values)
    elif figure.over == "variance":
        mean = fmean(values)
        found = fmean((value - mean) ** 2 for value in values)
    else:
        wanted = last_round(list(rows)) if at is None else at
        found = next((row.value for row in mine if row.round == wanted), None)
    return None if found is None else found * figure.scale / figure.divide


def dealt(folder: Path) -> int | None:
    """Return how many samples the clients of a run hold; None if its folder does not say."""
    try:
        parts = json.loads((folder / "partition.json").read_text(encoding="utf-8"))["samples"]
        return sum(sum(sizes) for sizes in parts.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
