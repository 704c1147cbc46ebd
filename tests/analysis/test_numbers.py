"""Each number of a report means the same in all of its forms, and says what it is a number of."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import flbench as fl
from flbench.analysis import statistics
from flbench.analysis.arrangement import arrange
from flbench.analysis.report import json_of, latex_of
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import analyse
from flbench.cli import app
from flbench.comparison.collect import collect
from tests.comparison.made import matrix, run_folder

pytestmark = pytest.mark.slow

ACCURACIES = {
    "fedavg": [0.50, 0.55, 0.48, 0.60, 0.51],
    "hfcd": [0.52, 0.53, 0.52, 0.61, 0.50],
    "ditto": [0.79, 0.82, 0.82, 0.78, 0.80],
}


def analysed(folder, **options):
    found = collect([folder])
    return analyse(arrange(found.runs, notes=found.notes, **options))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES)
    return analysed(folder)


def test_p_is_that_of_scipy(analysis):
    """The paired test decides about new partitions; the corrected one is for other samples."""
    first = analysis.clients.query("repetition == 1 and method == 'ditto'")
    overlap = first["test_size"].sum() / first["train_size"].sum()
    for _, row in analysis.pairs.iterrows():
        gaps = np.subtract(ACCURACIES[row["first"]], ACCURACIES[row["second"]])
        error = gaps.std(ddof=1) * math.sqrt(1 / 5 + overlap)
        p = stats.ttest_1samp(gaps, 0).pvalue
        assert row["p"] == row["paired_t"] == pytest.approx(p)
        assert row["corrected"] == pytest.approx(2 * stats.t.sf(abs(gaps.mean()) / error, 4))
        assert row["p"] < row["corrected"]


def test_repetitions_that_are_needed_are_of_independent_repetitions(analysis, tmp_path):
    row = analysis.pairs.set_index(["first", "second"]).loc["fedavg", "hfcd"]
    gaps = np.subtract(ACCURACIES["fedavg"], ACCURACIES["hfcd"])
    assert row["needed"] == statistics.repetitions_needed(gaps.mean() / gaps.std(ddof=1), tests=3)

    # Of fixed clients only the splits differ.
    matrix(tmp_path, ACCURACIES, keys=("partition.scheme=natural",))
    row = analysed(tmp_path).pairs.set_index(["first", "second"]).loc["fedavg", "hfcd"]
    assert row["p"] == row["corrected"] > row["paired_t"]
    assert math.isnan(row["needed"])


@pytest.mark.parametrize(
    ("keys", "hashed", "vary", "words"),
    [
        (("partition.seed=0",), "a" * 64, "training", "on this one partition"),
        (("seed=0",), None, "partition", "for this one seed of the training"),
        ((), None, "both", "over new partitions of these samples"),
    ],
)
def test_claims_name_their_population(tmp_path, keys, hashed, vary, words):
    for method, values in ACCURACIES.items():
        for k, value in enumerate(values):
            own = (*keys, f"partition.seed={k}") if vary == "partition" else keys
            folder = tmp_path / f"{method}-{k}"
            run_folder(folder, method, value, repetition=k, keys=own, partition_hash=hashed)

    for found in (analysed(tmp_path, baseline="fedavg"), analysed(tmp_path)):
        assert found.comparison.vary == vary
        assert f", {words}, " in found.answer[0]
        [board] = TABLES["leaderboard"](found, "digits")
        assert words in board.about
        assert found.pairs["corrected"].isna().all() == (vary != "both")
        # With one seed for all repetitions, its luck is taken for a difference.
        assert set(found.pairs["verdict"] == "no claim") == {vary == "partition"}
        assert found.pairs["p_holm"].isna().all() == (vary == "partition")
        assert not (vary == "partition" and "better" in found.answer[0].partition("no claim")[0])
    assert ("support no claim" in found.answer[0]) == (vary == "partition")


def test_each_place_has_what_differs_between_its_own_repetitions(tmp_path):
    matrix(tmp_path / "a", ACCURACIES, keys=("partition.alpha=0.1",))
    fixed = ("partition.alpha=1", "partition.seed=0")
    matrix(tmp_path / "b", ACCURACIES, keys=fixed, partition_hash="a" * 64)

    found = analysed(tmp_path)

    each = {one.split(" with ")[0]: one for one in found.answer if one.startswith("On ")}
    assert "on this one partition" in each["On digits, alpha=1"]
    assert "over new partitions" in each["On digits, alpha=0.1"]
    captions = re.findall(r"\\caption\{(.*)\}", latex_of(found)["leaderboard"])
    assert [caption.count("on this one partition") for caption in captions] == [0, 1]


def test_costs_of_a_target_that_not_all_runs_reach_are_never_the_smaller_ones(tmp_path):
    """Of ditto two of five runs reach the target, and those early; of hfcd three do, and late."""
    accuracies = {
        "fedavg": [0.6] * 5,
        "ditto": [0.9, 0.9, 0.1, 0.1, 0.1],
        "hfcd": [0.7, 0.7, 0.7, 0.1, 0.1],
    }
    matrix(tmp_path, accuracies, rounds=3, sent=1000, seconds=3.0)

    found = analyse(arrange(collect([tmp_path]).runs, targets=0.6))

    assert set(found.targets["split"]) == {"validation", "test"}
    table = found.targets.query("split == 'validation'").set_index("method")
    assert table["share"].to_dict() == {"fedavg": 1.0, "ditto": 0.4, "hfcd": 0.6}
    assert table["reached"].to_dict() == {"fedavg": 5, "ditto": 2, "hfcd": 3}
    assert table.loc["ditto", ["rounds", "bytes", "seconds"]].isna().all()
    assert table.loc["ditto", "least_rounds":"least_seconds"].tolist() == [3, 3000, 3.0]
    assert table.loc["hfcd", ["rounds", "bytes", "seconds"]].tolist() == [3, 3000, 3.0]
    assert table.sort_values("bytes").index[-1] == "ditto"
    block, on_test = TABLES["targets"](found, "digits")
    assert ("validation" in block.title, "test" in on_test.title) == (True, True)
    shown = {row["method"]: tuple(row.values())[2:] for row in block.cells()}
    assert shown["ditto"] == ("40 % (2 of 5)", "-", "-", "-")
    assert shown["hfcd"] == ("60 % (3 of 5)", "3", "3.0 kB", "3.0")


def test_runs_that_ended_early_do_not_leave_the_mean_to_the_others(tmp_path):
    for k, rounds in enumerate((2, 4)):
        folder = run_folder(tmp_path / f"a{k}", "fedavg", 0.8, repetition=k, rounds=rounds)
        config = (folder / "config.yaml").read_text()
        config = re.sub(r"rounds: \d+", "rounds: 4", config)
        (folder / "config.yaml").write_text(config)

    [panel, *_] = fl.report(tmp_path).plot("convergence").axes

    assert panel.lines[0].get_xdata().tolist() == [1, 2]


def test_methods_that_lack_repetitions_have_no_rank(tmp_path):
    for alpha in ("0.1", "1"):
        runs = matrix(tmp_path / alpha, ACCURACIES, keys=(f"partition.alpha={alpha}",))
        for k in (3, 4) if alpha == "1" else ():
            (runs["ditto", k] / "summary.json").unlink()  # it was not finished

    found = analysed(tmp_path)

    board = found.leaderboard.set_index(["place", "method"])
    assert board.loc["digits, alpha=0.1"]["rank"].to_dict() == {"ditto": 1, "hfcd": 2, "fedavg": 3}
    rows = board.loc["digits, alpha=1"]
    assert rows["rank"].drop("ditto").to_dict() == {"hfcd": 1, "fedavg": 2}
    assert math.isnan(rows.loc["ditto", "rank"])
    assert rows.index[-1] == "ditto"
    assert rows["n"].to_dict() == {"hfcd": 5, "fedavg": 5, "ditto": 3}
    assert set(found.across.ranks.index) == {"hfcd", "fedavg"}
    said = " ".join(found.answer)
    assert said.count("Not ranked") == 2
    [table] = TABLES["leaderboard"](found, "digits, alpha=1")
    shown = {row["method"]: (row["rank"], row["n"]) for row in table.cells()}
    assert shown == {"hfcd": ("1", "5"), "fedavg": ("2", "5"), "ditto": ("-", "3")}
    assert json.loads(json_of(found))["leaderboard"][-1]["rank"] is None
    assert "hfcd" in re.findall(r"(\w+) & \\textbf", latex_of(found)["leaderboard"])


def test_baseline_is_what_all_others_are_compared_with(tmp_path):
    matrix(tmp_path, ACCURACIES)

    found = fl.report(tmp_path, baseline="hfcd")

    pairs = found.pairs
    assert pairs["second"].tolist() == ["hfcd", "hfcd"]
    gap = np.mean(ACCURACIES["ditto"]) - np.mean(ACCURACIES["hfcd"])
    row = pairs.set_index(["first", "second"]).loc["ditto", "hfcd"]
    assert row["difference"] == pytest.approx(gap)
    assert found.classes.query("method == 'hfcd'")["difference"].isna().all()
    # The correction is for two tests, not for all three pairs.
    plain = fl.report(tmp_path).pairs
    p = pairs.set_index("first")[["p", "p_holm"]]
    assert p["p_holm"].tolist() == pytest.approx(multipletests(p["p"], method="holm")[1])
    smaller = p.loc["ditto", "p_holm"] / plain["p_holm"].min()
    assert smaller == pytest.approx(2 / 3 * p.loc["ditto", "p"] / plain["p"].min())
    source = latex_of(found._analysis)["leaderboard"]
    assert re.search(r"ditto & .*0\.8\d\d .*\{\*\}", source)
    assert "\\underline" not in source


def test_the_largest_mean_is_that_of_the_methods_with_all_repetitions(tmp_path):
    matrix(tmp_path / "a", {"fedavg": [0.5, 0.6, 0.55], "hfcd": [0.7, 0.75, 0.8]})
    matrix(tmp_path / "b", {"ft": [0.9, 0.95]})

    found = fl.report(tmp_path)

    assert found.leaderboard["method"].tolist()[0] == "hfcd"
    assert "(of the methods that have all repetitions)" in found.answer[0]


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
    file = tmp_path / "rows.csv"

    assert (
        app.main(["report", str(tmp_path), "--long", str(file), "--out", str(tmp_path / "r")]) == 0
    )

    rows = pd.read_csv(file)
    mine = rows.query("best and split == 'test' and deployment == 'personal'")
    by = ["place", "method"]
    found = mine[mine["metric"] == "accuracy"].groupby(by)["value"].agg(["mean", "std", "count"])
    board = pd.read_csv(tmp_path / "r" / "tables" / "leaderboard.csv").set_index(by).sort_index()
    columns = {"mean": "mean", "std": "std", "count": "n"}
    for column, name in columns.items():
        assert found[column].tolist() == pytest.approx(board[name].tolist(), rel=1e-12)
    costs = rows[rows["last"]].groupby(by)[["bytes", "seconds"]].mean()
    assert costs["bytes"].tolist() == pytest.approx(board["bytes"].tolist())
    assert costs["seconds"].tolist() == pytest.approx(board["seconds"].tolist())
    steps = rows.groupby("place")["steps"].agg(lambda one: {*one.dropna()}).to_dict()
    assert steps == {"digits, alpha=0.1": set(), "digits, alpha=1": {6, 12, 18}}
