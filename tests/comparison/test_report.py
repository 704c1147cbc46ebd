"""`flbench report` and `fl.report`: files, folders, studies, and what the texts say."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import flbench as fl
from flbench.cli import app
from flbench.core.text import in_latex
from tests.comparison.made import matrix, run_folder
from tests.support import run
from tests.tuning import studies

pytestmark = pytest.mark.slow

ACCURACIES = {
    "fedavg": [0.50, 0.52, 0.51, 0.50],
    "hfcd": [0.80, 0.83, 0.81, 0.79],
    "ditto": [0.79, 0.82, 0.82, 0.78],
}
TABLES = (
    *("leaderboard", "scores", "pairs", "targets", "classes"),
    *("clients", "client_spread", "curves"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES)
    return folder


@pytest.fixture(scope="module")
def found(runs):
    return fl.report(runs, target=0.5)


@pytest.fixture(scope="module")
def written(found, tmp_path_factory):
    return found.write(tmp_path_factory.mktemp("written") / "new" / "report")


def test_csv_files_hold_the_tables(found, written):
    for name in TABLES:
        table = getattr(found, name)
        read = pd.read_csv(written / "tables" / f"{name}.csv")

        assert list(read.columns) == list(table.columns)
        assert len(read) == len(table) > 0
        for column in table.columns:
            if pd.api.types.is_float_dtype(table[column]):
                assert read[column].to_numpy(float) == pytest.approx(
                    table[column].to_numpy(), rel=1e-12, abs=1e-12, nan_ok=True
                )
    board = pd.read_csv(written / "tables" / "leaderboard.csv")
    assert set(board["better_than"].dropna()) == {"fedavg"}


def test_json_holds_the_tables(found, written):
    tree = json.loads((written / "report.json").read_text())

    assert tree["answer"] == found.answer
    assert (tree["vary"], tree["metric"], tree["baseline"]) == ("both", "accuracy", "fedavg")
    assert tree["methods"] == list(dict.fromkeys(found.runs["method"]))
    for name in TABLES:
        assert len(tree[name]) == len(getattr(found, name))
    rare = [row["rare_recall"] for row in tree["leaderboard"]]
    assert rare == [None] * 3
    assert {row["path"] for row in tree["runs"]} == set(found.runs["path"])


def test_latex_marks_the_best_and_those_like_it(written):
    source = (written / "tables" / "leaderboard.tex").read_text()

    assert re.search(r"hfcd & \\textbf\{0\.80[78] ", source)
    assert re.search(r"ditto & \\underline\{0\.80[23] ", source)
    assert re.search(r"fedavg & 0\.50[78] ", source)
    for name in ("table", "tabular"):
        assert source.count(f"\\begin{{{name}}}") == source.count(f"\\end{{{name}}}") == 1
    rows = [line for line in source.splitlines() if line.endswith("\\\\")]
    assert {line.count(" & ") for line in rows} == {7}
    assert in_latex("50 % of a_b {#1}") == r"50 \% of a\_b \{\#1\}"


def test_latex_underlines_nothing_without_a_test(tmp_path):
    matrix(tmp_path / "runs", {name: values[:2] for name, values in ACCURACIES.items()})

    source = (
        fl.report(tmp_path / "runs").write(tmp_path / "out") / "tables" / "leaderboard.tex"
    ).read_text()

    assert "\\textbf" in source
    assert "\\underline" not in source
    assert "support no claim" in source


def test_report_of_folders_is_that_of_their_runs(found, runs):
    again = fl.report([fl.load(path) for path in sorted(runs.iterdir())], target=0.5)

    assert again.answer == found.answer
    pd.testing.assert_frame_equal(again.leaderboard, found.leaderboard)
    assert again.ranks is None
    assert "hfcd" in again._repr_html_()


def test_baseline_and_metric_can_be_chosen(runs):
    found = fl.report(runs, baseline="ditto", metric="macro_f1")

    assert found.classes.query("method == 'ditto'")["difference"].isna().all()
    assert found.classes.query("method == 'fedavg'")["difference"].notna().all()
    assert "test macro F1" in found.answer[0]


def test_command_writes_and_prints(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert app.main(["report", str(runs)]) == 0

    flat = " ".join(capsys.readouterr().out.split())
    assert all(sentence in flat for sentence in fl.report(runs).answer)
    assert "report/report.html" in flat
    assert (tmp_path / "report" / "report.md").is_file()

    assert app.main(["report", str(runs), "--json", "--out", "elsewhere"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["path"], len(tree["leaderboard"])) == ("elsewhere", 3)
    assert (tmp_path / "elsewhere" / "report.json").is_file()


def test_comparison_folder_gets_the_report(tmp_path):
    matrix(tmp_path / "cells", {"fedavg": [0.5], "hfcd": [0.6]})
    (tmp_path / "comparison.json").write_text("{}")

    assert app.main(["report", str(tmp_path)]) == 0
    own = (tmp_path / "report.json").read_bytes()
    assert app.main(["report", str(tmp_path), "--metric", "macro_f1"]) == 0
    assert app.main(["report", str(tmp_path), "--at", "rounds"]) == 0

    equal = json.loads((tmp_path / "report-rounds" / "report.json").read_text())
    assert equal["at"] == "rounds"
    assert (tmp_path / "report.json").read_bytes() == own
    other = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (json.loads(own)["metric"], other["metric"]) == ("accuracy", "macro_f1")


def test_learning_rates_that_a_study_has_chosen_are_fair(tmp_path):
    study = studies.begin(tmp_path / "study", "hfcd", "fedavg")
    for method, rate in (("hfcd", 0.1), ("fedavg", 0.2)):
        keys = (f"train.optimizer.lr={rate}",)
        run = run_folder(tmp_path / "runs" / method, method, 0.5, repetition=1, keys=keys)
        studies.cell(study, run, method, 1, {"accuracy": 0.5})

    of_study, of_runs = fl.report(study).warnings, fl.report(tmp_path / "runs").warnings

    assert not any("train.optimizer.lr" in one for one in of_study)
    assert any("train.optimizer.lr" in one for one in of_runs)


@pytest.mark.full
def test_study_compares_its_cells(tmp_path):
    source, _ = run(tmp_path / "run")
    study = studies.begin(tmp_path / "study", "hfcd", "fedavg")
    rng = np.random.default_rng(0)
    for seed in (1, 2, 3):
        for label, base in (("hfcd", 0.6), ("hfcd tuned", 0.8), ("fedavg", 0.5)):
            studies.cell(study, source, label, seed, {"accuracy": base + 0.01 * rng.random()})

    assert app.main(["report", str(study)]) == 0

    board = pd.read_csv(study / "tables" / "leaderboard.csv")
    assert list(board["method"]) == ["hfcd tuned", "hfcd", "fedavg"]
    assert len(pd.read_csv(study / "tables" / "trials.csv")) == 0
    assert list(board["n"]) == [3, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["{}"], "has no run below it"),
        (["{}/a", "--metric", "loss"], "no test metric `loss`"),
        (["{}/a", "--metric", "loss", "--at", "rounds"], "no test metric `loss`"),
        (["{}/a", "--baseline", "ditto"], "the baseline 'ditto' is not one of the methods: fedavg"),
        (["{}/a", "{}/b"], "not comparable: they differ in partition.alpha: 0.1 and 1, in"),
    ],
)
def test_wrong_requests_are_named(arguments, message, tmp_path, capsys):
    if len(arguments) > 1:
        run_folder(tmp_path / "a", "fedavg", 0.5, keys=("partition.alpha=0.1",))
        run_folder(tmp_path / "b", "hfcd", 0.5, keys=("partition.alpha=1",))

    assert app.main(["report", *(one.format(tmp_path) for one in arguments)]) == 2

    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "report").exists()
