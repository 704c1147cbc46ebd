"""Decides whether claims of a paper's text hold for the measured numbers."""

from collections.abc import Callable, Mapping
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
    """
    if claim.reason is not None or claim.table is None:
        return Verdict(claim, "cannot be decided", why=claim.reason or "")
    printed, lacks, _ = _differences(
        claim, paper, str(claim.row), lambda number: _printed(paper, number)
    )
    undecided = Verdict(
        claim, "cannot be decided", _unit(claim, paper), None if lacks else printed.get(0)
    )
    if not any(table == claim.table for table, _, _ in grid):
        return replace(undecided, why=f"table {claim.table} was not requested")
    by_seed, missing, worst = _differences(
        claim,
        paper,
        str(claim.measured_row or claim.row),
        lambda number: grid[number].values if number in grid else {},
        lambda number: _bounded(grid.get(number), claim),
    )
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    lacking = f"not measured: {', '.join(missing[:SHOWN])}{more}" if missing else ""
    if not by_seed:
        return replace(undecided, why=lacking or "no seed has all runs")
    value, sign = fmean(by_seed.values()), _sign(claim)
    held = sign * value >= sign * claim.bound - CLOSE
    outcome: Outcome = "did not hold" if not held else "cannot be decided" if missing else "held"
    why = {
        f"least favourable column: {worst}": worst is not None,
        "it holds against the measured rows": held and bool(missing),
        "the direction agrees, the size does not": not held and value * claim.bound > 0,
        lacking: bool(missing),
    }
    said = "; ".join(text for text, applies in why.items() if applies)
    return replace(undecided, outcome=outcome, by_seed=by_seed, why=said)


Values = Callable[[Number], Mapping[int, float]]
"""Values of a cell by seed; none of a cell that has none."""


def _differences(
    claim: Claim, paper: Paper, row: str, values: Values, of_rivals: Values | None = None
) -> tuple[Mapping[int, float], list[str], str | None]:
    """Return differences by seed, the names of missing cells, and the least favourable column.

    Args:
        claim: The claim.
        paper: Facts of the paper.
        row: Label of the row that is compared with others.
        values: Values of a cell.
        of_rivals: Values of a cell that the row is compared with; None for `values`.
    """
    table, best = str(claim.table), max if claim.above is not None else min
    gaps: dict[str, Mapping[int, float]] = {}
    missing: dict[str, None] = {}
    for column in paper.columns_of(claim):
        mine = values((table, row, column))
        rivals = {
            f"{other} ({place})": (of_rivals or values)((table, other, place))
            for other, place in _rivals(claim, paper, column)
        }
        lacks = [name for name, found in rivals.items() if not found]
        missing |= dict.fromkeys(lacks if mine else [f"{row} ({column})"])
        there = [found for found in rivals.values() if found and mine]
        rival = best(there, key=lambda found: fmean(found.values()), default={})
        by_seed = {
            seed: _difference(value, rival[seed], claim)
            for seed, value in mine.items()
            if seed in rival
        }
        gaps[column] = {seed: gap for seed, gap in by_seed.items() if gap is not None}
    worst = None
    if claim.each:
        means = {c: _sign(claim) * fmean(gap.values()) for c, gap in gaps.items() if gap}
        worst = min(means, key=means.__getitem__, default=None)
        gaps = {} if worst is None else {worst: gaps[worst]}
    seeds = sorted(set.intersection(*({*gap} for gap in gaps.values()))) if gaps else []
    return {seed: fmean(gap[seed] for gap in gaps.values()) for seed in seeds}, [*missing], worst


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


def _printed(paper: Paper, number: Number) -> Mapping[int, float]:
    """Return the number that the paper prints, as the value of one seed."""
    return {0: float(paper.published[number])} if number in paper.published else {}


def _bounded(one: Measured | None, claim: Claim) -> Mapping[int, float]:
    """Return the values by seed of a cell that a claim compares with.

    Where a value is only known to be at least some number, that number stands for it in a claim
    `below`: what lies below the number lies below the value.
    """
    if one is None:
        return {}
    return {**one.at_least, **one.values} if claim.below is not None else one.values


def _sign(claim: Claim) -> int:
    return 1 if claim.above is not None else -1


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
