"""Tables for LaTeX: numbers, names, and what a document needs to be compiled."""

import re

import numpy as np
import pytest

from flbench.analysis import latex
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import analyse
from flbench.comparison.collect import collect
from tests.comparison.made import matrix, run_folder

ACCURACIES = {
    "fedavg": [0.50, 0.52, 0.51, 0.50],
    "hfcd": [0.80, 0.83, 0.81, 0.79],
    "ditto": [0.79, 0.82, 0.82, 0.78],
}


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES, keys=("partition.seed=0",), partition_hash="a" * 64, names=True)
    return analyse(arrange(collect([folder]).runs, targets=[0.5]))


def rows_of(source):
    """The cells of the rows of all tables, headers included."""
    lines = [line for line in source.splitlines() if line.endswith(" \\\\")]
    return [re.split(r"(?<!\\) & ", line.removesuffix(" \\\\")) for line in lines]


def test_each_table_is_complete(analysis):
    found = latex.all_of(analysis)

    assert tuple(found) == tuple(name for name in latex.NAMES if name != "new_clients")
    for source in found.values():
        for kind in ("table", "tabular"):
            assert source.count(f"\\begin{{{kind}}}") == source.count(f"\\end{{{kind}}}")
        for table in source.split("\\begin{table}")[1:]:
            [columns] = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", table)
            rows = rows_of(table)
            assert {len(row) for row in rows} == {len(columns)}
            assert len({*rows[0]}) == len(rows[0])  # no column twice
            assert table.count("\\toprule") == table.count("\\bottomrule") == 1
    assert len(rows_of(found["pairs"])) == 1 + 3
    assert "not reached" in found["targets"]


def test_numbers_are_those_of_the_tables(analysis):
    found = latex.all_of(analysis)

    board = analysis.leaderboard.set_index("method")
    for row in rows_of(found["leaderboard"])[1:]:
        value, half = map(float, re.findall(r"0\.\d{3}", row[1]))
        width = board.loc[row[0], "high"] - board.loc[row[0], "mean"]
        assert value == pytest.approx(board.loc[row[0], "mean"], abs=6e-4)
        assert half == pytest.approx(width, abs=6e-4)
    negative = [row for row in rows_of(found["pairs"])[1:] if row[1].startswith("$-$")]
    worse = analysis.pairs[analysis.pairs["difference"] < 0]
    assert len(negative) == len(worse) > 0
    assert not re.search(r"(?<![\w$.])-\d", "".join(map("".join, rows_of(found["pairs"]))))
    clients = analysis.client_scores.query("method == 'hfcd'").set_index("name")
    rows = [row for row in rows_of(found["clients"]) if row[0] in clients.index]
    column = 3 + list(analysis.comparison.methods).index("hfcd")
    shown = [float(row[column].split(" ")[0]) for row in rows]
    assert shown == np.round(clients.loc[[row[0] for row in rows], "accuracy"], 3).tolist()


def test_names_are_text(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, names=True)
    found = analyse(arrange(collect([tmp_path]).runs, labels={tmp_path / "a": "50 % of a_b {#1}"}))

    source = "".join(latex.all_of(found).values())

    assert r"50 \% of a\_b \{\#1\}" in source
    assert "a_b" not in source
