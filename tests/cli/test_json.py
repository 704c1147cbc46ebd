"""`--json`: standard output is one JSON document, whatever else a command says."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from flbench.cli import app, console
from flbench.cli import mlflow as mlflow_command
from flbench.tracking.send import SentCounts

TINY = (
    *("--dataset", "digits", "--clients", "3", "--rounds", "1", "train.local_epochs=1"),
    *("partition.samples=300", "tracking.mlflow=false"),
)


def document(*arguments: str, code: int = 0):
    """Run a command with `--json` and return its document, which must be valid JSON."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert app.main([*arguments, "--json"]) == code, err.getvalue()

    def refuse(text: str) -> None:
        pytest.fail(f"{text} is not JSON")

    return json.loads(out.getvalue(), parse_constant=refuse)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Document of `flbench run`, and the folder of the run."""
    folder = tmp_path_factory.mktemp("json")
    return document("run", "fedavg", *TINY, "--out", str(folder)), folder


def test_run_prints_what_show_prints(trained):
    printed, folder = trained

    assert [run["algorithm"] for run in printed["runs"]] == ["fedavg"]
    assert printed["studies"] == []
    assert all(run["finished"] and run["path"].startswith(str(folder)) for run in printed["runs"])
    assert document("show", *(run["path"] for run in printed["runs"])) == printed


def test_finished_run_resumed(trained):
    path = trained[0]["runs"][0]["path"]

    [run] = document("run", "--resume", path)["runs"]

    assert run["path"] == path


@pytest.mark.slow
def test_dry_run_prints_configuration_partition_and_estimate(tmp_path):
    entry = document("run", "local", *TINY, "--dry-run", "--out", str(tmp_path / "runs"))

    assert not (tmp_path / "runs").exists()
    assert entry["config"]["train"]["rounds"] == 1
    assert entry["partition"]["clients"] == 3
    assert entry["estimate"]["cohort"] == 3
    assert entry["estimate"]["total"] > 0
    # Local-Only with a full budget trains all clients, however few take part.
    few = ("run", "local", *TINY, "train.participation=0.4", "--dry-run")
    assert document(*few)["estimate"]["cohort"] == 1
    assert document(*few, "algorithm.budget=full")["estimate"]["cohort"] == 3


def test_sync_prints_counts(trained, monkeypatch):
    path = trained[0]["runs"][0]["path"]
    sent, follow = SentCounts(runs=1, metrics=4), mlflow_command.follow
    done = follow.Synced(Path(path), "sqlite:///x.db", sent, None)
    monkeypatch.setattr(follow, "sync_all", lambda *_: [done])

    entry = {"path": path, "uri": "sqlite:///x.db", "sent": vars(sent), "error": None}
    assert document("sync", path) == [entry]


def test_numbers_that_json_does_not_have_are_null(capsys):
    console.json({"a": [float("nan"), float("inf"), 1.5]})

    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5]}
