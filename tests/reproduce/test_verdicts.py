"""Verdicts on claims, and the values that are read from runs."""

from dataclasses import replace

import numpy as np
import pytest

from flbench.reproduce import claims, measure
from flbench.reproduce.measure import Measured
from flbench.reproduce.paper import Claim, Paper, PaperMetric, cells
from flbench.results.metrics_file import Row

PUBLISHED = {
    ("1", "Mine", "X"): 70,
    ("1", "Mine", "Y"): 80,
    ("1", "B", "X"): 60,
    ("1", "C", "X"): 65,
    ("1", "C", "Y"): 77,
    ("2", "Mine", "X"): 10,
    ("2", "B", "X"): 12,
}
PAPER = Paper.model_validate(
    {
        "name": "P",
        "title": "t",
        "authors": "a",
        "venue": "v",
        "doi": "10.1/1",
        "seeds": 3,
        "datasets": {"X": {"name": "digits"}, "Y": {"name": "mnist"}},
        "methods": {name: {"algo": name.lower()} for name in ("Mine", "B", "C")},
        "metrics": {
            "accuracy": {"what": "w", "metric": "accuracy"},
            "to 80 %": {"what": "w", "over": "target", "unit": "rounds"},
        },
        "tables": {
            "1": {
                "caption": "c",
                "metric": "accuracy",
                "columns": ["X", "Y"],
                "rows": ["Mine", "B", "C"],
            },
            "2": {"caption": "c", "metric": "to 80 %", "columns": ["X"], "rows": ["Mine", "B"]},
        },
        "published": PUBLISHED,
    }
)


def grid(**values: list[float] | None) -> dict[tuple[str, str, str], Measured]:
    """Lines of column X by row, and of column Y by row with a trailing underscore; seeds 0, 1..."""
    found = {}
    for cell in cells(PAPER, "1"):
        key = cell.row + ("_" if cell.column == "Y" else "")
        found[cell.number] = Measured(cell, None, dict(enumerate(values.get(key) or [])))
    return found


def decide(known, **keys):
    claim = Claim(**({"text": "x", "table": "1", "row": "Mine", "columns": ("X",)} | keys))
    return claims.decide(claim, PAPER, known)


def test_difference_is_paired_by_seed_with_its_standard_deviation():
    mine, other = [71.0, 75.0, 70.0], [60.0, 61.0, 64.0]

    verdict = decide(grid(Mine=mine, B=other), over=("B",), above=9)

    gaps = np.subtract(mine, other)
    assert verdict.outcome == "held"
    assert verdict.measured == pytest.approx(gaps.mean())
    assert verdict.std == pytest.approx(gaps.std(ddof=1))
    assert (verdict.printed, verdict.unit) == (10.0, "points")
    assert verdict.by_seed == {0: 11.0, 1: 14.0, 2: 6.0}


@pytest.mark.parametrize(("table", "unit"), [("1", "points"), ("2", "rounds")])
def test_claim_that_is_not_measured_has_the_unit_of_its_metric(table, unit):
    verdict = decide({}, table=table, over=("B",), below=1)

    assert (verdict.outcome, verdict.unit) == ("cannot be decided", unit)


EACH = {"columns": "all", "each": True, "over": "all"}
BOTH = "Mine=70,72 B=60,60 C=65,65 Mine_=80,80 C_=77,79"
"""Gaps of Mine over the best of the others: 5 and 7 in X, 3 and 1 in Y."""
LESS = {"over": "B", "below": 20, "relative": True}
HELD, FAILED, OPEN = "held", "did not hold", "cannot be decided"
CASES = [
    # Measured values, the claim, the verdict, the measured difference, and the printed one.
    ("Mine=65 B=60", {"over": "B", "above": 5}, HELD, 5, 10),
    ("Mine=65 B=60", {"over": "B", "above": 5 + 1e-12}, HELD, 5, 10),
    ("Mine=65 B=60", {"over": "B", "above": 5.1}, FAILED, 5, 10),
    ("Mine=65,99 B=60", {"over": "B", "above": 1}, HELD, 5, 10),  # the seeds of both rows
    # The best of the others, or the lowest for a claim `below`.
    ("Mine=70 B=60 C=66", {"over": "all", "above": 4}, HELD, 4, 5),
    ("Mine=70 B=60 C=66", {"over": "all", "below": 4}, FAILED, 10, 10),
    ("Mine=70 B=60 C=66", {"row": "B", "over": "all", "below": 6}, HELD, -6, -5),
    # B prints a dash in Y, so it is no rival there.
    ("Mine_=80 C_=70", {"columns": ("Y",), "over": "all", "above": 3}, HELD, 10, 3),
    # A missing row leaves a claim open, but does not save it.
    ("Mine=70 B=60", {"over": "all", "above": 5}, OPEN, 10, 5),
    ("Mine=55 B=60", {"over": "all", "above": 5}, FAILED, -5, 5),
    ("B=60", {"over": "B", "above": 5}, OPEN, None, 10),
    ("Mine=30 B=40", LESS, HELD, -25, 100 / 6),
    ("Mine=30 B=0", LESS, OPEN, None, 100 / 6),
    (BOTH, {"columns": "all", "over": "all", "above": 4}, HELD, 4, 4),
    ("Mine=70 B=1 C=1", {"columns": "all", "over": "all", "above": 4}, OPEN, None, 4),
    # The least favourable column decides a claim about each.
    (BOTH, {"above": 2, **EACH}, HELD, 2, 3),
    (BOTH, {"above": 2.1, **EACH}, FAILED, 2, 3),
    (BOTH, {"below": 4, **EACH}, FAILED, 11, 10),
    ("Mine=70 B=60 C=65", {"above": 0, **EACH}, OPEN, 5, 3),
    ("Mine=64 B=60 C=65", {"above": 0, **EACH}, FAILED, -1, 3),
    # A row may be compared with itself elsewhere, and be decided by the numbers of another one.
    ("Mine=70 Mine_=77", {"columns": ("Y",), "over_column": "X", "above": 7}, HELD, 7, 10),
    ("Mine=90 C=66 B=60", {"measured_row": "C", "over": "B", "above": 9}, FAILED, 6, 10),
    ("Mine=70 B=60", {"table": "2", "over": "B", "below": 5}, OPEN, None, -2),
    ("Mine=65 B=60", {"reason": "no numbers"}, OPEN, None, None),
]


def valued(text):
    """The grid of values such as `Mine=70,72 B=60`."""
    rows = (one.split("=") for one in text.split())
    return grid(**{row: [float(value) for value in some.split(",")] for row, some in rows})


@pytest.mark.parametrize(("values", "keys", "outcome", "measured", "printed"), CASES)
def test_claims_are_decided_as_by_hand(values, keys, outcome, measured, printed):
    over = keys.get("over", ())
    verdict = decide(valued(values), **keys | {"over": (over,) if over == "B" else over})

    assert verdict.outcome == outcome
    assert verdict.measured == (None if measured is None else pytest.approx(measured))
    assert verdict.printed == (None if printed is None else pytest.approx(printed))


def test_what_is_missing_is_named():
    assert "C (X)" in decide(grid(Mine=[70.0], B=[60.0]), over="all", above=5).why
    assert "Mine (X)" in decide(grid(B=[60.0]), over=("B",), above=5).why
    assert "Y" in decide(valued(BOTH), above=2, **EACH).why  # the least favourable column


def test_claim_about_several_columns_has_the_deviation_of_their_mean():
    verdict = decide(valued(BOTH), columns="all", over="all", above=4)

    gaps = np.mean([[5.0, 7.0], [3.0, 1.0]], axis=0)
    assert verdict.std == pytest.approx(gaps.std(ddof=1))
    assert decide(valued(BOTH), above=2, **EACH).std == pytest.approx(np.std([3.0, 1.0], ddof=1))
    assert decide(grid(Mine=[65.0], B=[60.0]), over=("B",), above=1).std is None


def test_target_that_a_rival_never_reaches_is_a_lower_bound_of_its_rounds():
    """Mine needs 40 rounds, B has not reached the target in 100, C in 30."""
    known = grid(Mine=[40.0], C=[30.0])
    place = ("1", "B", "X")
    known[place] = replace(known[place], at_least={0: 101.0})

    fewer = decide(known, over=("B",), below=1)
    more = decide(known, over=("B", "C"), below=1)
    above = decide(known, over=("B",), above=1)

    assert (fewer.outcome, fewer.measured) == (HELD, -61.0)
    assert (more.outcome, more.measured) == (FAILED, 10.0)
    assert above.outcome == OPEN
    assert "B (X)" in above.why


ROWS = [
    *(Row(n, "test", "personal", "accuracy", v) for n, v in ((1, 0.2), (5, 0.5), (10, 0.9))),
    Row(10, "test", "head", "accuracy", 0.1),
    Row(10, "validation", "personal", "accuracy", 0.3),
    *(Row(n, "train", "", "peer_bytes", 40960.0) for n in (1, 2)),
    *(Row(n, "train", "", "trainings", 2.0) for n in (1, 2)),
    Row(0, "setup", "", "setup_bytes", 1000.0),
]


def metric(**keys) -> PaperMetric:
    return PaperMetric(**({"what": "w", "metric": "accuracy"} | keys))


def test_metrics_of_the_last_round_and_over_rounds_equal_numpy():
    values = 100 * np.array([0.2, 0.5, 0.9])

    assert measure.read(metric(), ROWS) == pytest.approx(90.0)
    assert measure.read(metric(over="mean"), ROWS) == pytest.approx(values.mean())
    last = measure.read(metric(over="mean", rounds=6), ROWS)  # rounds 5 to 10 of those evaluated
    assert last == pytest.approx(values[1:].mean())
    assert measure.read(metric(over="mean", rounds=5), ROWS) == pytest.approx(90.0)
    variance = measure.read(metric(over="variance", unit="percent^2"), ROWS)
    assert variance == pytest.approx(values.var())
    assert measure.read(metric(over="max"), [*ROWS, ROWS[1]._replace(round=11)]) == 90.0
    assert measure.read(metric(protocol="head"), ROWS) == pytest.approx(10.0)


def test_metric_at_a_round_without_evaluation_is_missing():
    assert measure.read(metric(), ROWS, at=5) == pytest.approx(50.0)
    assert measure.read(metric(), ROWS, at=6) is None
    assert measure.read(metric(protocol="gm"), ROWS) is None


def test_sums_are_divided_by_other_sums():
    keys = {"metric": "peer_bytes", "split": "train", "protocol": "", "over": "sum", "unit": "KiB"}

    assert measure.read(metric(**keys), ROWS) == pytest.approx(80.0)
    assert measure.read(metric(**keys, per="trainings", divide=10), ROWS) == pytest.approx(2.0)
    assert measure.read(metric(**keys, per="nothing"), ROWS) is None


def test_sum_over_all_splits_counts_the_set_up():
    keys = {"protocol": "", "over": "sum", "unit": "MB", "split": None}

    total = measure.read(metric(metric=["peer_bytes", "setup_bytes"], **keys), ROWS)

    assert total == pytest.approx((81920 + 1000) / 1e6)
