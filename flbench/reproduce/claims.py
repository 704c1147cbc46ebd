"""Decides whether claims of a paper's text hold for the measured numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal

from flbench.analysis.statistics import sample_std
from flbench.reproduce.measure import Measured
from flbench.reproduce.paper import Claim, Number, Paper, cells

Outcome = Literal["held", "did not hold", "cannot be decided"]
Grid = Mapping[Number, Measured]
"""Measured cells by table, row and column."""

CLOSE: Final = 1e-9  # rounding errors do not decide a claim
SHOWN: Final = 6  # missing cells that a verdict names


@dataclass(frozen=True)
class Verdict:
    """Verdict about a claim.

    Attributes:
        claim: The claim.
        outcome: The verdict.
        unit: Unit of the differences; "" for a claim without a table.
        printed: Difference of the paper's own numbers; None if it does not print them all.
        by_seed: Measured difference by seed.
        why: Why it cannot be decided, or did not hold; "" if there is nothing to add.
    """

    claim: Claim
    outcome: Outcome
    unit: str = ""
    printed: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    why: str = ""

    @property
    def measured(self) -> float | None:
        """Mean of the measured differences; None without any."""
        return fmean(self.by_seed.values()) if self.by_seed else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds with the divisor n - 1; None for fewer than two seeds."""
        return sample_std(list(self.by_seed.values()))


def decide(claim: Claim, paper: Paper, grid: Grid) -> Verdict:
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
    """
    if claim.reason is not None or claim.table is None:
        return Verdict(claim, "cannot be decided", why=claim.reason or "")
    sign = 1 if claim.above is not None else -1
    columns = paper.columns_of(claim)
    undecided = Verdict(claim, "cannot be decided", _unit(claim, paper), _printed(claim, paper))
    if not any(table == claim.table for table, _, _ in grid):
        return replace(undecided, why=f"table {claim.table} was not requested")
    gaps: dict[str, Mapping[int, float]] = {}
    missing: dict[str, None] = {}
    for column in columns:
        gaps[column], lacks = _gap(claim, paper, grid, column)
        missing |= dict.fromkeys(lacks)
    names = [*missing]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    lacking = f"not measured: {', '.join(names[:SHOWN])}{more}" if names else ""
    worst = None
    if claim.each:
        means = {column: sign * fmean(gap.values()) for column, gap in gaps.items() if gap}
        worst = min(means, key=means.__getitem__, default=None)
        gaps = {worst: gaps[worst]} if worst is not None else {}
    seeds = sorted(set.intersection(*({*gap} for gap in gaps.values()))) if gaps else []
    if not seeds:
        return replace(undecided, why=lacking or "no seed has all runs")
    by_seed = {seed: fmean(gap[seed] for gap in gaps.values()) for seed in seeds}
    value = fmean(by_seed.values())
    held = sign * value >= sign * claim.bound - CLOSE
    outcome: Outcome = "did not hold" if not held else "cannot be decided" if missing else "held"
    why = [
        *([f"least favourable column: {worst}"] if worst is not None else []),
        *(["it holds against the measured rows"] if held and missing else []),
        *(
            ["the direction agrees, the size does not"]
            if not held and value * claim.bound > 0
            else []
        ),
        *([lacking] if lacking else []),
    ]
    return replace(undecided, outcome=outcome, by_seed=by_seed, why="; ".join(why))


def _rivals(claim: Claim, paper: Paper, column: str) -> list[tuple[str, str]]:
    """Return (row, column) of the cells that a claim compares its row with in one column.

    With `over: all`, rows without a published number are left out, unless no row has one.
    """
    place = claim.over_column or column
    if not claim.over:
        return [(str(claim.row), place)]
    if claim.over != "all":
        rows = list(claim.over)
    else:
        rows = [row for row in paper.tables[str(claim.table)].rows if row != claim.row]
        rows = [r for r in rows if (claim.table, r, place) in paper.published] or rows
    return [(row, place) for row in rows]


def _printed(claim: Claim, paper: Paper) -> float | None:
    """Return the difference of the paper's own numbers; None if cells have none."""
    table, gaps = str(claim.table), []
    for column in paper.columns_of(claim):
        mine = paper.published.get((table, str(claim.row), column))
        others = [paper.published.get((table, *one)) for one in _rivals(claim, paper, column)]
        known = [float(value) for value in others if value is not None]
        if mine is None or not known or len(known) < len(others):
            return None
        gaps.append(_difference(float(mine), _best(known, claim), claim))
    found = [gap for gap in gaps if gap is not None]
    if not found or len(found) < len(gaps):
        return None
    if not claim.each:
        return fmean(found)
    return min(found) if claim.above is not None else max(found)


def _gap(
    claim: Claim, paper: Paper, grid: Grid, column: str
) -> tuple[Mapping[int, float], list[str]]:
    """Return the measured difference in one column by seed, and the cells that are missing."""
    table, row = str(claim.table), str(claim.measured_row or claim.row)
    mine = grid.get((table, row, column))
    if mine is None or not mine.values:
        return {}, [f"{row} ({column})"]
    rivals = {
        f"{other} ({place})": _values(grid.get((table, other, place)), claim)
        for other, place in _rivals(claim, paper, column)
    }
    there = [values for values in rivals.values() if values]
    missing = [name for name, values in rivals.items() if not values]
    if not there:
        return {}, missing
    means = [fmean(values.values()) for values in there]
    rival = there[means.index(_best(means, claim))]
    gaps = {
        seed: _difference(value, rival[seed], claim)
        for seed, value in mine.values.items()
        if seed in rival
    }
    return {seed: gap for seed, gap in gaps.items() if gap is not None}, missing


def _values(one: Measured | None, claim: Claim) -> Mapping[int, float]:
    """Return the values by seed of a cell that a claim compares with.

    Where a value is only known to be at least some number, that number stands for it in a claim
    `below`: what lies below the number lies below the value.
    """
    if one is None:
        return {}
    return {**one.at_least, **one.values} if claim.below is not None else one.values


def _best(values: Sequence[float], claim: Claim) -> float:
    """Return the highest value, or the lowest one for a claim `below`."""
    return max(values) if claim.above is not None else min(values)


def _difference(mine: float, other: float, claim: Claim) -> float | None:
    """Return `mine - other`; for a relative claim in percent of `other`, or None if that is 0."""
    if not claim.relative:
        return mine - other
    return 100 * (mine - other) / other if other else None


def _unit(claim: Claim, paper: Paper) -> str:
    """Return the unit of a claim's differences: points if the metric is in percent."""
    if claim.relative:
        return "%"
    place = str(claim.row), paper.columns_of(claim)[0]
    of_table = cells(paper, str(claim.table))
    metric = next((one.metric for one in of_table if (one.row, one.column) == place), None)
    unit = "percent" if metric is None else metric.unit
    return {"percent": "points", "percent^2": "%^2"}.get(unit, unit)
