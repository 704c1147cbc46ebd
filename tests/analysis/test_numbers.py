"""Each number of a report means the same in all of its forms."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

import flbench as fl
from flbench.analysis import statistics
from flbench.analysis.arrangement import arrange
from flbench.analysis.report import json_of, latex_of
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import Analysis
from flbench.cli import app
from flbench.comparison.collect import collect
from tests.comparison.made import matrix, run_folder

pytestmark = pytest.mark.slow

ACCURACIES = {
    "fedavg": [0.50, 0.55, 0.48, 0.60, 0.51],
    "hfcd": [0.52, 0.53, 0.52, 0.61, 0.50],
    "ditto": [0.79, 0.82, 0.82, 0.78, 0.80],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES)
    return folder


@pytest.fixture(scope="module")
def plain(runs):
    return fl.report(runs)


def test_repetitions_that_are_needed_are_of_independent_repetitions(plain, tmp_path):
    row = plain.pairs.set_index(["first", "second"]).loc["fedavg", "hfcd"]
    gaps = np.subtract(ACCURACIES["fedavg"], ACCURACIES["hfcd"])
    assert row["needed"] == statistics.repetitions_needed(gaps.mean() / gaps.std(ddof=1), tests=3)

    # Of fixed clients only the splits differ.
    matrix(tmp_path, ACCURACIES, keys=("partition.scheme=natural",))
    row = fl.report(tmp_path).pairs.set_index(["first", "second"]).loc["fedavg", "hfcd"]
    assert row["p"] == row["corrected"] > row["paired_t"]
    assert math.isnan(row["needed"])


def test_runs_that_ended_early_do_not_leave_the_mean_to_the_others(tmp_path):
    for k, rounds in enumerate((2, 4)):
        folder = run_folder(tmp_path / f"a{k}", "fedavg", 0.8, repetition=k, rounds=rounds)
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(re.sub(r"rounds: \d+", "rounds: 4", config))

    [panel, *_] = fl.report(tmp_path).plot("convergence").axes

    assert panel.lines[0].get_xdata().tolist() == [1, 2]


def test_methods_that_lack_repetitions_have_no_rank(tmp_path):
    for alpha in ("0.1", "1"):
        runs = matrix(tmp_path / alpha, ACCURACIES, keys=(f"partition.alpha={alpha}",))
        for k in (3, 4) if alpha == "1" else ():
            (runs["ditto", k] / "summary.json").unlink()  # it was not finished

    analysis = Analysis(arrange(collect([tmp_path]).runs))

    board = analysis.leaderboard.set_index(["place", "method"])
    assert board.loc["digits, alpha=0.1"]["rank"].to_dict() == {"ditto": 1, "hfcd": 2, "fedavg": 3}
    rows = board.loc["digits, alpha=1"]
    assert rows["rank"].drop("ditto").to_dict() == {"hfcd": 1, "fedavg": 2}
    assert math.isnan(rows.loc["ditto", "rank"])
    assert rows.index[-1] == "ditto"
    assert rows["n"].to_dict() == {"hfcd": 5, "fedavg": 5, "ditto": 3}
    assert analysis.answer[2].endswith(" ditto.")  # which is not ranked there
    assert set(analysis.across.ranks.index) == {"hfcd", "fedavg"}
    [table] = TABLES["leaderboard"](analysis, "digits, alpha=1")
    shown = {row["method"]: (row["rank"], row["n"]) for row in table.cells()}
    assert shown == {"hfcd": ("1", "5"), "fedavg": ("2", "5"), "ditto": ("-", "3")}
    assert json.loads(json_of(analysis))["leaderboard"][-1]["rank"] is None
    assert "hfcd" in re.findall(r"(\w+) & \\textbf", latex_of(analysis)["leaderboard"])


def test_baseline_is_what_all_others_are_compared_with(runs, plain):
    found = fl.report(runs, baseline="hfcd")

    pairs = found.pairs
    assert pairs["second"].tolist() == ["hfcd", "hfcd"]
    gap = np.mean(ACCURACIES["ditto"]) - np.mean(ACCURACIES["hfcd"])
    row = pairs.set_index(["first", "second"]).loc["ditto", "hfcd"]
    assert row["difference"] == pytest.approx(gap)
    assert found.classes.query("method == 'hfcd'")["difference"].isna().all()
    # The correction is for two tests, not for all three pairs.
    p = pairs.set_index("first")[["p", "p_holm"]]
    assert p["p_holm"].tolist() == pytest.approx(multipletests(p["p"], method="holm")[1])
    smaller = p.loc["ditto", "p_holm"] / plain.pairs["p_holm"].min()
    assert smaller == pytest.approx(2 / 3 * p.loc["ditto", "p"] / plain.pairs["p"].min())
    analysis = Analysis(arrange(collect([runs]).runs, baseline="hfcd"))
    source = latex_of(analysis)["leaderboard"]
    assert re.search(r"ditto & .*0\.8\d\d .*\{\*\}", source)
    assert "\\underline" not in source


def test_bytes_between_clients_are_no_upload_in_show(tmp_path, capsys):
    folder = run_folder(tmp_path / "a", "fedavg", 0.5, sent=1000, rounds=3)
    summary = json.loads((folder / "summary.json").read_text())
    summary["communication"] |= {"up_bytes": 0, "peer_bytes": 3000}
    (folder / "summary.json").write_text(json.dumps(summary))

    assert app.main(["show", str(folder)]) == 0

    line = next(line for line in capsys.readouterr().out.splitlines() if "3.0 kB" in line)
    assert re.search(r"0 B +0 B +3\.0 kB", line)


def test_rows_for_other_programs_have_the_means_of_the_report(tmp_path, capsys):
    for alpha in ("0.1", "1"):
        matrix(tmp_path / alpha, ACCURACIES, keys=(f"partition.alpha={alpha}",), sent=10)
    for one in (tmp_path / "1").glob("*/metrics.csv"):  # the others do not count steps
        one.write_text(one.read_text().replace(",train,,trainings,", ",train,,steps,"))
    file, out = tmp_path / "rows.csv", tmp_path / "r"

    assert app.main(["report", str(tmp_path), "--long", str(file), "--out", str(out)]) == 0

    rows = pd.read_csv(file)
    mine = rows.query("best and split == 'test' and deployment == 'personal'")
    by = ["place", "method"]
    found = mine[mine["metric"] == "accuracy"].groupby(by)["value"].agg(["mean", "std", "count"])
    board = pd.read_csv(out / "tables" / "leaderboard.csv").set_index(by).sort_index()
    for column, name in {"mean": "mean", "std": "std", "count": "n"}.items():
        assert found[column].tolist() == pytest.approx(board[name].tolist(), rel=1e-12)
    costs = rows[rows["last"]].groupby(by)[["bytes", "seconds"]].mean()
    assert costs["bytes"].tolist() == pytest.approx(board["bytes"].tolist())
    assert costs["seconds"].tolist() == pytest.approx(board["seconds"].tolist())
    steps = rows.groupby("place")["steps"].agg(lambda one: {*one.dropna()}).to_dict()
    assert steps == {"digits, alpha=0.1": set(), "digits, alpha=1": {6, 12, 18}}
