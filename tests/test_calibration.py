"""The tables of `benchmarks/calibration.py`, made from comparisons with chosen results."""

import pytest

from flbench.core.registry import ALGORITHMS
from tests.support import benchmark_script


@pytest.fixture(scope="module")
def calibration():
    with benchmark_script("calibration") as module:
        yield module
    for name in module.EQUAL:
        ALGORITHMS.pop(name)


def made(design, number, gap, verdict, low, high):
    """A comparison whose twins differ by a constant and some noise."""
    noise = [0.02, -0.01, 0.0, 0.01, -0.02]
    values = {
        "twin": [0.5 + gap + one for one in noise],
        "other": [0.5] * 5,
        "more": [0.8 + 2 * one for one in noise],
        "fedper": [0.5 + gap + 3 * one for one in noise],
    }
    pair = {"verdict": verdict, "low": low, "high": high}
    mean = {"mean": 0.5 + gap, "low": 0.49, "high": 0.51}
    return {"design": design, "number": number, "values": values, "pair": pair, "mean": mean}


def rows_of(table):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_rates_count_wrong_claims(calibration):
    same, nan = "no significant difference", float("nan")
    done = [
        made("both", 0, 0.0, same, -0.02, 0.02),
        made("both", 1, 0.02, "better", 0.001, 0.04),
        made("both", 2, 0.1, "better", 0.08, 0.12),
        made("partition", 0, 0.1, "no claim", nan, nan),
    ]

    rows = rows_of(calibration.claims(done))

    assert [row["repetitions"] for row in rows] == ["both"] * 3 + ["partition"] * 2
    assert [row["wrong"][:5] for row in rows] == ["0.667", "0.667", "1.000", "0.000", "0.000"]
    assert [row["of"] for row in rows] == ["3"] * 3 + ["1"] * 2
