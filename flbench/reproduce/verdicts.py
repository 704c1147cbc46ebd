"""What becomes of a paper's claims here: held, did not hold, or cannot be judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from flbench.reports.statistics import spread
from flbench.reproduce.cells import named
from flbench.reproduce.measure import Line
from flbench.reproduce.schema import Claim, Paper

Word = Literal["held", "did not hold", "cannot be judged"]
Grid = Mapping[tuple[str, str, str], Line]
"""Lines by table, row and column."""

SHOWN = 4  # of the missing cells
CLOSE = 1e-9  # what rounding may take from a bound


@dataclass(frozen=True)
class Verdict:
    """A claim, judged.

    Attributes:
        claim: of the paper.
        word: what becomes of it.
        unit: of the differences.
        printed: the difference that the paper's own cells give; None if they do not.
        measured: the difference here, mean over seeds; None if there is none.
        spread: of the difference over seeds, seed by seed; None for fewer than two.
        seeds: how many.
        why: what stands in the way, or how close it was.
        asked: whether its table was asked for, or none has it.
    """

    claim: Claim
    word: Word
    unit: str
    printed: float | None = None
    measured: float | None = None
    spread: float | None = None
    seeds: int = 0
    why: str = ""
    asked: bool = True


@dataclass(frozen=True)
class _Gap:
    """A difference in one column: by seed, and the rivals that are not there."""

    by_seed: Mapping[int, float]
    missing: tuple[str, ...]


def judge(claim: Claim, paper: Paper, grid: Grid, tables: Sequence[str]) -> Verdict:
    """Judge a claim.

    A difference is taken seed by seed, against the best of the rows that the claim is compared
    with, by their means (the lowest, where it claims to lie below). Where rows are missing a claim
    can fail, for they could only raise what it is compared with, but it cannot hold.

    Args:
        claim: to judge.
        paper: that makes it.
        grid: the cells that were asked for.
        tables: that were asked for.
    """
    if claim.reason is not None or claim.table is None:
        return Verdict(claim, "cannot be judged", "", why=claim.reason or "")
    unit = "percent" if claim.relative else _unit(claim, paper, grid)
    printed = own_difference(claim, paper)
    open_ = Verdict(claim, "cannot be judged", unit, printed)
    if claim.table not in tables:
        return replace(open_, why=f"{named(claim.table)} was not asked for", asked=False)
    gaps = [_measured(claim, paper, grid, column) for column in _columns(claim, paper)]
    missing = tuple(dict.fromkeys(name for gap in gaps for name in gap.missing))
    seeds = sorted(set.intersection(*(set(gap.by_seed) for gap in gaps)))
    lacking = f"not measured: {_few(missing)}" if missing else ""
    if not seeds:
        return replace(open_, why=lacking or "no seed has all the runs")
    values = [fmean(gap.by_seed[seed] for gap in gaps) for seed in seeds]
    value = fmean(values)
    held = value >= claim.bound - CLOSE if claim.above is not None else value <= claim.bound + CLOSE
    why = lacking
    if not held and value * claim.bound > 0:
        why = "the direction agrees, the size does not" + (f"; {lacking}" if lacking else "")
    word: Word = "did not hold" if not held else "cannot be judged" if missing else "held"
    if held and missing:
        why = f"it holds against what is there; {lacking}"
    return Verdict(claim, word, unit, printed, value, spread(values), len(values), why)


def _few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _columns(claim: Claim, paper: Paper) -> Sequence[str]:
    table = paper.tables[str(claim.table)]
    return list(table.columns) if claim.columns == "all" else claim.columns


def _rivals(claim: Claim, paper: Paper, column: str) -> list[tuple[str, str]]:
    """Return (row, column) of what a row is compared with in one column.

    Of all others, without those that print a dash where others print a figure.
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


def own_difference(claim: Claim, paper: Paper) -> float | None:
    """Return the difference that the paper's own cells give."""
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
    return fmean(found) if found and len(found) == len(gaps) else None


def _measured(claim: Claim, paper: Paper, grid: Grid, column: str) -> _Gap:
    """Return the difference in one column, seed by seed."""
    table = str(claim.table)
    mine = grid.get((table, str(claim.row), column))
    if mine is None or not mine.values:
        return _Gap({}, (f"{claim.row} ({column})",))
    rivals = {place: grid.get((table, *place)) for place in _rivals(claim, paper, column)}
    there = [line for line in rivals.values() if line is not None and line.values]
    missing = tuple(
        f"{row} ({place})"
        for (row, place), line in rivals.items()
        if line is None or not line.values
    )
    if not there:
        return _Gap({}, missing)
    means = [line.mean for line in there if line.mean is not None]
    rival = there[means.index(_best(means, claim))]
    by_seed = {}
    for seed in mine.values:
        if seed in rival.values:
            gap = _difference(mine.values[seed], rival.values[seed], claim)
            if gap is not None:
                by_seed[seed] = gap
    return _Gap(by_seed, missing)


def _best(values: Sequence[float], claim: Claim) -> float:
    return max(values) if claim.above is not None else min(values)


def _difference(mine: float, other: float, claim: Claim) -> float | None:
    """Return a difference in the figure's unit, or in percent of the other; None of nothing."""
    if not claim.relative:
        return mine - other
    return 100 * (mine - other) / other if other else None


def _unit(claim: Claim, paper: Paper, grid: Grid) -> str:
    """Return the unit of a claim's differences: points where figures are percent."""
    columns = _columns(claim, paper)
    line = grid.get((str(claim.table), str(claim.row), columns[0]))
    figure = None if line is None else line.planned.cell.figure
    unit = "percent" if figure is None else figure.unit
    return "points" if unit == "percent" else unit
