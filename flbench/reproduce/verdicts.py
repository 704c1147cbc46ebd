"""Verdicts about a paper's claims: held, did not hold, or cannot be decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from flbench.analysis.statistics import sample_std
from flbench.core.wording import listed
from flbench.reproduce.cells import named, of_table
from flbench.reproduce.measure import MeasuredCell
from flbench.reproduce.schema import Claim, PaperFacts

Outcome = Literal["held", "did not hold", "cannot be decided"]
Grid = Mapping[tuple[str, str, str], MeasuredCell]
"""Measured cells by table, row and column."""

SHOWN = 4  # missing cells that a message names
CLOSE = 1e-9  # tolerance for rounding errors in the comparison with a bound


@dataclass(frozen=True)
class Verdict:
    """Verdict about a claim.

    Attributes:
        claim: Claim of the paper.
        outcome: Whether the claim held.
        unit: Unit of the differences.
        printed: Difference of the paper's own numbers; None if cells have none.
        measured: Difference of the measured numbers, mean over seeds; None if there is none.
        std: Standard deviation of the difference over seeds; None for fewer than two seeds.
        by_seed: Difference of the measured numbers by seed.
        why: Why the claim cannot be decided, or did not hold; "" if there is nothing to add.
        asked: Whether the claim's table was requested; true for a claim without a table.
    """

    claim: Claim
    outcome: Outcome
    unit: str
    printed: float | None = None
    measured: float | None = None
    std: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    why: str = ""
    asked: bool = True

    @property
    def seeds(self) -> int:
        """Number of seeds with a difference."""
        return len(self.by_seed)


@dataclass(frozen=True)
class _Gap:
    """Difference in one column.

    Attributes:
        by_seed: Difference by seed.
        missing: Row and column of the cells that are not measured.
    """

    by_seed: Mapping[int, float]
    missing: tuple[str, ...]


def decide(claim: Claim, paper: PaperFacts, grid: Grid, tables: Sequence[str]) -> Verdict:
    """Decide whether a claim holds for the measured numbers.

    The difference is taken by seed, between the claim's row and the best of the other rows: the one
    with the highest mean, or with the lowest mean for a claim `below`. Several columns count with
    their mean, or, for a claim about each column, with the least favourable of them. If rows are
    missing, a claim can fail, because further rows can only make the best one better, but it cannot
    hold. The same is true of missing columns if the claim is about each column.

    Args:
        claim: Claim of the paper.
        paper: Facts of the paper.
        grid: Measured cells of the requested tables.
        tables: Numbers of the requested tables.
    """
    if claim.reason is not None or claim.table is None:
        return Verdict(claim, "cannot be decided", "", why=claim.reason or "")
    unit = "percent" if claim.relative else _unit(claim, paper)
    printed = own_difference(claim, paper)
    undecided = Verdict(claim, "cannot be decided", unit, printed)
    if claim.table not in tables:
        return replace(undecided, why=f"{named(claim.table)} was not requested", asked=False)
    gaps = {column: _measured(claim, paper, grid, column) for column in _columns(claim, paper)}
    missing = tuple(dict.fromkeys(name for gap in gaps.values() for name in gap.missing))
    lacking = f"not measured: {listed(missing, SHOWN)}" if missing else ""
    worst = None
    if claim.each:
        means = {name: fmean(gap.by_seed.values()) for name, gap in gaps.items() if gap.by_seed}
        worst = _least_favourable(means, claim)
        gaps = {} if worst is None else {worst: gaps[worst]}
    seeds = sorted(set.intersection(*(set(gap.by_seed) for gap in gaps.values()))) if gaps else []
    if not seeds:
        return replace(undecided, why=lacking or "no seed has all runs")
    by_seed = {seed: fmean(gap.by_seed[seed] for gap in gaps.values()) for seed in seeds}
    values = list(by_seed.values())
    value = fmean(values)
    held = value >= claim.bound - CLOSE if claim.above is not None else value <= claim.bound + CLOSE
    why = lacking
    if not held and value * claim.bound > 0:
        why = "the direction agrees, the size does not" + (f"; {lacking}" if lacking else "")
    outcome: Outcome = "did not hold" if not held else "cannot be decided" if missing else "held"
    if held and missing:
        why = f"it holds against the measured rows; {lacking}"
    if worst is not None:
        why = f"least favourable column: {worst}" + (f"; {why}" if why else "")
    return Verdict(claim, outcome, unit, printed, value, sample_std(values), by_seed, why)


def _columns(claim: Claim, paper: PaperFacts) -> Sequence[str]:
    """Return the labels of the columns that a claim is about."""
    table = paper.tables[str(claim.table)]
    return list(table.columns) if claim.columns == "all" else claim.columns


def _rivals(claim: Claim, paper: PaperFacts, column: str) -> list[tuple[str, str]]:
    """Return (row, column) of the cells that a claim compares its row with in one column.

    With `over: all`, rows without a published number are left out, unless no row has one.
    """
    table = paper.tables[str(claim.table)]
    place = claim.over_column or column
    if not claim.over:
        return [(str(claim.row), place)]
    if claim.over != "all":
        return [(row, place) for row in claim.over]
    k = list(table.columns).index(place)
    printed = {label: row.values[k] for label, row in table.rows.items() if label != claim.row}
    if all(value is None for value in printed.values()):
        return [(label, place) for label in printed]
    return [(label, place) for label, value in printed.items() if value is not None]


def own_difference(claim: Claim, paper: PaperFacts) -> float | None:
    """Return the difference of the paper's own numbers; None if cells have none."""
    table = paper.tables[str(claim.table)]
    order = list(table.columns)

    def cell(row: str, column: str) -> float | None:
        return table.rows[row].values[order.index(column)]

    gaps = []
    for column in _columns(claim, paper):
        mine = cell(str(claim.row), column)
        others = [cell(*place) for place in _rivals(claim, paper, column)]
        known = [value for value in others if value is not None]
        if mine is None or not known or len(known) < len(others):
            return None
        gaps.append(_difference(mine, _best(known, claim), claim))
    found = [gap for gap in gaps if gap is not None]
    if not found or len(found) < len(gaps):
        return None
    if not claim.each:
        return fmean(found)
    return min(found) if claim.above is not None else max(found)


def _measured(claim: Claim, paper: PaperFacts, grid: Grid, column: str) -> _Gap:
    """Return the measured difference in one column, by seed."""
    table = str(claim.table)
    row = str(claim.measured_row or claim.row)
    mine = grid.get((table, row, column))
    if mine is None or not mine.values:
        return _Gap({}, (f"{row} ({column})",))
    rivals = {
        place: _values(grid.get((table, *place)), claim) for place in _rivals(claim, paper, column)
    }
    there = [values for values in rivals.values() if values]
    missing = tuple(f"{row} ({place})" for (row, place), values in rivals.items() if not values)
    if not there:
        return _Gap({}, missing)
    means = [fmean(values.values()) for values in there]
    rival = there[means.index(_best(means, claim))]
    by_seed = {}
    for seed in mine.values:
        if seed in rival:
            gap = _difference(mine.values[seed], rival[seed], claim)
            if gap is not None:
                by_seed[seed] = gap
    return _Gap(by_seed, missing)


def _values(line: MeasuredCell | None, claim: Claim) -> Mapping[int, float]:
    """Return the values by seed of a cell that a claim compares with.

    Where a value is only known to be at least some number, that number stands for it in a claim
    `below`: what lies below the number lies below the value.
    """
    if line is None:
        return {}
    return {**line.at_least, **line.values} if claim.below is not None else line.values


def _best(values: Sequence[float], claim: Claim) -> float:
    """Return the highest value, or the lowest one for a claim `below`."""
    return max(values) if claim.above is not None else min(values)


def _least_favourable(gaps: Mapping[str, float], claim: Claim) -> str | None:
    """Return the column where a claim is missed by most or held by least; None without columns."""
    if not gaps:
        return None
    sign = 1 if claim.above is not None else -1
    return min(gaps, key=lambda column: sign * gaps[column])


def _difference(mine: float, other: float, claim: Claim) -> float | None:
    """Return `mine - other`; for a relative claim in percent of `other`, or None if that is 0."""
    if not claim.relative:
        return mine - other
    return 100 * (mine - other) / other if other else None


def _unit(claim: Claim, paper: PaperFacts) -> str:
    """Return the unit of a claim's differences: points if the metric is in percent."""
    place = (str(claim.row), _columns(claim, paper)[0])
    cells = of_table(paper, str(claim.table))
    metric = next((cell.metric for cell in cells if (cell.row, cell.column) == place), None)
    unit = "percent" if metric is None else metric.unit
    return "points" if unit == "percent" else unit
