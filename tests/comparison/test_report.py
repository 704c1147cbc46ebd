"""`flbench report` and `fl.report`: where reports are written, and of what."""

import json

import pandas as pd
import pytest

import flbench as fl
from flbench.cli import app
from tests.comparison.made import matrix, run_folder
from tests.tuning import studies

pytestmark = pytest.mark.slow

ACCURACIES = {"fedavg": [0.50, 0.52, 0.51, 0.50], "hfcd": [0.80, 0.83, 0.81, 0.79]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, ACCURACIES)
    return folder


def test_report_of_a_folder_is_that_of_its_runs(runs):
    found = fl.report(runs)
    again = fl.report([fl.load(path) for path in sorted(runs.iterdir())])

    assert again.answer == found.answer
    pd.testing.assert_frame_equal(again.leaderboard, found.leaderboard)
    assert again.ranks is None
    assert "hfcd" in again._repr_html_()


def test_command_writes_and_prints(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert app.main(["report", str(runs)]) == 0

    flat = " ".join(capsys.readouterr().out.split())
    assert all(sentence in flat for sentence in fl.report(runs).answer)
    assert "report/report.html" in flat
    assert (tmp_path / "report" / "report.md").is_file()

    assert app.main(["report", str(runs), "--json", "--out", "elsewhere"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["path"], len(tree["leaderboard"])) == ("elsewhere", 2)
    written = json.loads((tmp_path / "elsewhere" / "report.json").read_text())
    assert written["answer"] == fl.report(runs).answer
    assert {row["path"] for row in written["runs"]} == set(fl.report(runs).runs["path"])


def test_comparison_folder_keeps_its_report_beside_others(tmp_path):
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


def test_study_without_trials_reports_its_cells(tmp_path):
    """Learning rates that a study has chosen are fair; others have a warning."""
    study = studies.begin(tmp_path / "study", "hfcd", "fedavg")
    for method, rate in (("hfcd", 0.1), ("fedavg", 0.2)):
        keys = (f"train.optimizer.lr={rate}",)
        run = run_folder(tmp_path / "runs" / method, method, 0.5, repetition=1, keys=keys)
        studies.cell(study, run, method, 1, {"accuracy": 0.5 + rate})
        studies.cell(study, run, f"{method} tuned", 1, {"accuracy": 0.6 + rate})
    long = tmp_path / "long.csv"

    assert app.main(["report", str(study), "--long", str(long)]) == 0

    assert long.is_file()
    assert "search" in json.loads((study / "report.json").read_text())
    board = pd.read_csv(study / "tables" / "leaderboard.csv").set_index("method")
    means = {"fedavg tuned": 0.8, "fedavg": 0.7, "hfcd tuned": 0.7, "hfcd": 0.6}
    assert board["mean"].to_dict() == pytest.approx(means)
    assert not any("train.optimizer.lr" in one for one in fl.report(study).warnings)
    assert any("train.optimizer.lr" in one for one in fl.report(tmp_path / "runs").warnings)
