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


@pytest.mark.parametrize(
    ("gain", "word"), [(5.0, "held"), (5.0 - 1e-12, "held"), (5.1, "did not hold")]
)
def test_bound_itself_is_reached(gain, word):
    assert decide(grid(Mine=[65.0], B=[60.0]), over=("B",), above=gain).outcome == word


def test_smaller_gain_in_the_same_direction_is_explained():
    known = grid(Mine=[62.0], B=[60.0])

    assert "direction agrees" in decide(known, over=("B",), above=9).why
    assert decide(known, over=("B",), above=9).outcome == "did not hold"
    assert "direction" not in decide(grid(Mine=[59.0], B=[60.0]), over=("B",), above=9).why


def test_one_seed_has_no_standard_deviation():
    assert decide(grid(Mine=[65.0], B=[60.0]), over=("B",), above=1).std is None


def test_only_seeds_of_both_rows_count():
    verdict = decide(grid(Mine=[65.0, 99.0], B=[60.0]), over=("B",), above=1)

    assert verdict.by_seed == {0: 5.0}


def test_best_of_others_is_what_a_row_lies_above_and_the_lowest_what_it_lies_below():
    known = grid(Mine=[70.0], B=[60.0], C=[66.0])

    assert decide(known, over="all", above=4).measured == 4.0
    assert decide(known, over="all", above=4).printed == 5.0
    assert decide(known, over="all", below=4).measured == 10.0
    assert decide(known, row="B", over="all", below=6).outcome == "held"


def test_row_that_prints_a_dash_is_not_a_rival():
    verdict = decide(grid(Mine_=[80.0], C_=[70.0]), columns=("Y",), over="all", above=3)

    assert verdict.outcome == "held"
    assert verdict.printed == 3.0


def test_missing_rival_leaves_a_claim_open_but_does_not_save_it():
    good, bad = grid(Mine=[70.0], B=[60.0]), grid(Mine=[55.0], B=[60.0])

    still_open = decide(good, over="all", above=5)
    lost = decide(bad, over="all", above=5)

    assert still_open.outcome == "cannot be decided"
    assert still_open.measured == 10.0
    assert "it holds against the measured rows; not measured: C (X)" in still_open.why
    assert lost.outcome == "did not hold"


def test_claim_with_a_missing_row_cannot_be_decided():
    verdict = decide(grid(B=[60.0]), over=("B",), above=5)

    assert verdict.outcome == "cannot be decided"
    assert verdict.measured is None
    assert verdict.why == "not measured: Mine (X)"


def test_relative_claims_are_percent_of_the_other():
    known = grid(Mine=[30.0], B=[40.0])

    verdict = decide(known, over=("B",), below=20, relative=True)

    assert verdict.measured == pytest.approx(-25.0)
    assert verdict.outcome == "held"
    assert verdict.unit == "%"
    assert decide(grid(Mine=[30.0], B=[0.0]), over=("B",), below=20, relative=True).measured is None


def test_claim_about_several_columns_is_about_their_mean():
    known = grid(Mine=[70.0, 72.0], B=[60.0, 60.0], C=[65.0, 65.0], Mine_=[80.0, 80.0], C_=[77, 79])

    verdict = decide(known, columns="all", over="all", above=4)

    gaps = np.mean([[5.0, 7.0], [3.0, 1.0]], axis=0)
    assert verdict.measured == pytest.approx(gaps.mean())
    assert verdict.std == pytest.approx(gaps.std(ddof=1))
    assert verdict.printed == pytest.approx((5 + 3) / 2)
    assert decide(
        grid(Mine=[70.0], B=[1.0], C=[1.0]), columns="all", over="all", above=4
    ).outcome == ("cannot be decided")


EACH = {"columns": "all", "each": True, "over": "all"}


def test_claim_about_each_column_is_decided_by_the_least_favourable_one():
    """By hand: gaps of 5 and 7 in X (against C), and of 3 and 1 in Y; the paper prints 5 and 3."""
    known = grid(Mine=[70.0, 72.0], B=[60.0, 60.0], C=[65.0, 65.0], Mine_=[80.0, 80.0], C_=[77, 79])

    held, missed = decide(known, above=2, **EACH), decide(known, above=2.1, **EACH)

    assert (held.outcome, missed.outcome) == ("held", "did not hold")
    assert (held.measured, held.printed, len(held.by_seed)) == (2.0, 3.0, 2)
    assert held.std == pytest.approx(np.std([3.0, 1.0], ddof=1))
    assert held.why == "least favourable column: Y"
    below = decide(known, below=4, **EACH)  # the lowest others: gaps of 11 and 2
    assert (below.outcome, below.measured) == ("did not hold", 11.0)


def test_missing_column_leaves_a_claim_about_each_open_but_does_not_save_it():
    good, bad = grid(Mine=[70.0], B=[60.0], C=[65.0]), grid(Mine=[64.0], B=[60.0], C=[65.0])

    still_open, lost = decide(good, above=0, **EACH), decide(bad, above=0, **EACH)

    assert still_open.outcome == "cannot be decided"
    assert "it holds against the measured rows; not measured: Mine (Y)" in still_open.why
    assert (lost.outcome, lost.measured) == ("did not hold", -1.0)
    assert decide(grid(), above=0, **EACH).outcome == "cannot be decided"


def test_claim_may_compare_a_row_with_itself_elsewhere():
    verdict = decide(grid(Mine=[70.0], Mine_=[77.0]), columns=("Y",), over_column="X", above=7)

    assert (verdict.outcome, verdict.measured, verdict.printed) == ("held", 7.0, 10.0)


def test_claim_of_another_table_cannot_be_decided():
    verdict = decide(grid(Mine=[70.0], B=[60.0]), table="2", over=("B",), below=5)

    assert (verdict.outcome, verdict.measured) == ("cannot be decided", None)


def test_target_that_a_rival_never_reaches_is_a_lower_bound_of_its_rounds():
    """Mine needs 40 rounds, B has not reached the target in 100, C in 30."""
    known = grid(Mine=[40.0], C=[30.0])
    place = ("1", "B", "X")
    known[place] = replace(known[place], at_least={0: 101.0})

    fewer = decide(known, over=("B",), below=1)
    more = decide(known, over=("B", "C"), below=1)
    above = decide(known, over=("B",), above=1)

    assert (fewer.outcome, fewer.measured) == ("held", -61.0)
    assert (more.outcome, more.measured) == ("did not hold", 10.0)
    assert above.outcome == "cannot be decided"
    assert "B (X)" in above.why


def test_claim_may_be_decided_by_the_numbers_of_another_row():
    known = grid(Mine=[90.0], C=[66.0], B=[60.0])

    verdict = decide(known, measured_row="C", over=("B",), above=9)

    assert (verdict.outcome, verdict.measured, verdict.printed) == ("did not hold", 6.0, 10.0)


def test_claim_with_a_reason_cannot_be_decided():
    verdict = claims.decide(Claim(text="x", reason="no numbers"), PAPER, {})

    assert (verdict.outcome, verdict.why) == ("cannot be decided", "no numbers")


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
