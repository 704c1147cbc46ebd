"""`benchmarks/baselines.py`: which methods the page names follows from the figures by its rules."""

import pandas as pd
import pytest

from flbench.algorithms import ALGORITHMS
from tests.support import benchmark_script


@pytest.fixture(scope="module")
def script():
    """The module of the script."""
    with benchmark_script("baselines") as module:
        yield module


def table(**gaps):
    """Figures with the difference to `ft` (in points) of each method in each of its settings."""
    rows = []
    for name, by_setting in gaps.items():
        for setting, gap in by_setting.items():
            rows.append(
                {
                    "setting": setting,
                    "method": name,
                    "bytes": 2e6,
                    "accuracy": 0.9 + gap / 100,
                    "default": 0.8,
                    "minus_ft": gap / 100,
                    "minus_local": 0.1,
                    "verdict_ft": "",
                    "verdict_local": "better",
                }
            )
    return pd.DataFrame(rows)


BROAD = [f"s{number}" for number in range(5)]


def test_best_broadly_measured_method_and_best_recent_one_are_chosen(script):
    board = script.Board(
        table(
            ft=dict.fromkeys([*BROAD, "s0-new"], 0),
            fedper=dict.fromkeys(BROAD, -2),
            fedrep=dict.fromkeys(BROAD, -3),
            fedbabu={"s0": 5},  # better, but measured in one setting
            gpfl={"s0-new": -4},
            fedcp={"s0-new": -1},
        )
    )

    found = board.chosen(("fedper", "fedrep", "fedbabu", "gpfl", "fedcp", "fedas"))

    assert [name for name, _ in found] == ["fedper", "fedcp"]
    assert board.recent == {"gpfl", "fedcp"}
    assert len(board.rows("ft")) == len(BROAD)


def test_family_without_recent_methods_has_the_next_ones(script):
    board = script.Board(
        table(dfedavg=dict.fromkeys(BROAD, -9), dfedalt=dict.fromkeys(BROAD, -8), dispfl={"s0": 0})
    )

    assert [name for name, _ in board.chosen(("dfedavg", "dfedalt", "dispfl"))] == [
        *("dfedalt", "dfedavg"),
    ]
    assert [name for name, _ in board.chosen(("dispfl", "dfedalt"))] == ["dfedalt", "dispfl"]
    assert board.chosen(("fedamp",)) == []


def test_families_have_each_method_once(script):
    names = [name for family in script.FAMILIES.values() for name in family]

    assert len(names) == len(set(names))
    assert set(names) <= set(ALGORITHMS.names()) - set(script.ALWAYS)


def test_page_has_the_figures_of_the_table(script):
    figures = table(
        ft=dict.fromkeys(BROAD, 0),
        local=dict.fromkeys(BROAD, -10),
        fedavg=dict.fromkeys(BROAD, -1),
        fedper={**dict.fromkeys(BROAD[:4], -2), "s4": -4.5},
        fedrep=dict.fromkeys(BROAD, -3),
    )

    [line] = [one for one in script.page(figures).splitlines() if "`fedper`" in one]

    assert "| -2.5 (-4.5 to -2.0) |" in line
    assert "| 5 / 0 of 5 | 0 / 0 of 5 | 1.00 |" in line


def test_figures_are_those_of_the_page(script, tmp_path):
    page = tmp_path / "digits.md"
    page.write_text(
        "\n".join(
            [
                "# The board: digits",
                "| method | accuracy, tuned | accuracy, default | MB, tuned |",
                "|---|---|---|---|",
                "| `fedper` | 96.5 [95.0,&nbsp;98.0] | 80.0 | 1,037.5 |",
                "| `ft` | 94.0 | 80.0 | 37.1 |",
                "| `local` | 90.0 [88.0,&nbsp;92.0] | 70.0 | 0 |",
                "| `gpfl` | - | 60.0 | 72.2 |",
                "text",
                "| method | minus `local`, tuned | minus `ft`, tuned | minus `ft`, default |",
                "|---|---|---|---|",
                "| `fedper` | **+6.4 [+5.0,&nbsp;+8.0]** | +2.5 [-1.0,&nbsp;+4.0] | **-9.0** |",
                "| `gpfl` | - | - | **-9.0** |",
            ]
        )
    )

    rows = {row.pop("method"): row for row in script.figures(page)}

    assert set(rows) == {"fedper", "ft", "local"}
    assert rows["fedper"] == {
        "setting": "digits",
        "accuracy": 0.965,
        "default": 0.8,
        "bytes": 1037.5e6,
        "minus_local": pytest.approx(0.064),
        "verdict_local": "better",
        "minus_ft": 0.025,
        "verdict_ft": "",
    }
    assert rows["local"]["minus_ft"] == pytest.approx(-0.04)
