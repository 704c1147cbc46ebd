"""Folders that an earlier version has written are loaded, reported, resumed and synchronized.

`make.py` has made them with the code of commit 789746e.
"""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import flbench as fl
from flbench.cli import app
from flbench.tracking import follow
from tests.installed import needs
from tests.old_folders.make import COMMANDS

FOLDERS = Path(__file__).parent / "folders.tar.xz"
TINY = 1e-9  # of float64, where another processor has computed the first rounds


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """The folders. Tests copy those that they write to."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(FOLDERS) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def copied(old, tmp_path):
    """Return a copy of one of the folders."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(old / name, tmp_path / name))

    return copy


def runs_below(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.rglob("summary.json"))


def summary_of(path: Path):
    return json.loads((path / "summary.json").read_text("utf-8"))


def accuracy_of(path: Path) -> float:
    return summary_of(path)["best"]["test"]["accuracy"]


def assert_equal_models(one: Path, other: Path) -> None:
    for client in (0, 1):
        first, second = (
            fl.load(path).model(client, checkpoint="last").state_dict() for path in (one, other)
        )
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert value.dtype == torch.float64
            assert torch.allclose(value, second[name], rtol=0, atol=TINY), name


@pytest.mark.slow
def test_every_run_is_loaded_with_its_tables(old):
    paths = runs_below(old)
    parts = [path.relative_to(old).parts[0] for path in paths]
    assert {part: parts.count(part) for part in parts} == {
        "comparison": 4,
        "paper": 2,
        "runs": 2,
        "study": 4,
    }
    for path in paths:
        run, summary = fl.load(path), summary_of(path)
        last = run.metrics.query("split == 'test' and protocol == 'personal' and round == 2")
        [accuracy] = last.query("metric == 'accuracy'")["value"]

        assert run.finished
        assert run.digest == summary["weights_digest"]
        assert run.config.algorithm.name == summary["algorithm"]
        assert accuracy == pytest.approx(summary["last"]["test"]["accuracy"], abs=TINY)
        assert {*run.clients["client"]} == {0, 1}
        assert {*run.per_class["class"]} == {*range(10)}


def test_models_predict_what_the_run_has_measured(old):
    images, labels = load_digits(return_X_y=True)
    for path in runs_below(old / "runs"):
        run = fl.load(path)
        with np.load(path / "partition.npz") as file:
            parts = dict(file)
        for client in (0, 1):
            rows = parts["index"][(parts["client"] == client) & (parts["part"] == 2)]
            scores = run.predict(
                images[rows].reshape(-1, 8, 8).astype(np.uint8), client, checkpoint="last"
            )
            hits = float((scores.argmax(dim=1).numpy() == labels[rows]).mean())
            [row] = run.clients.query(f"client == {client} and moment == 'last'").to_dict("records")
            assert row["accuracy"] == pytest.approx(hits, abs=TINY)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_one_that_was_not_interrupted(copied, tmp_path):
    [config] = copied("interrupted").rglob("config.yaml")
    path = config.parent
    assert not fl.load(path).finished

    resumed = fl.resume(path, progress=False)
    twin = fl.run(config=config, output={"dir": str(tmp_path / "twin")}, progress=False)

    assert resumed.finished
    assert resumed.metrics["round"].max() == 3
    assert_equal_models(path, twin.path)


@pytest.mark.slow
def test_a_study_is_read_and_needs_nothing_more(copied):
    path = copied("study")
    study = fl.load(path)

    assert study.methods == ("fedper",)
    assert [*study.trials["state"]] == ["finished"] * 2
    assert len(study.results()) == 2
    assert study.best("fedper").score == study.trials["score"].max()
    for row in study.finals.to_dict("records"):
        assert row["test.accuracy"] == summary_of(Path(row["path"]))["best"]["test"]["accuracy"]
    assert fl.resume(path, progress=False).trials.equals(study.trials)
    assert (path / "study.md").is_file()


@pytest.mark.slow
def test_a_comparison_is_reported_from_its_folder_its_cells_and_its_archive(old, copied):
    cells = runs_below(old / "comparison")
    means = {
        method: np.mean([accuracy_of(path) for path in cells if f"{method}-" in path.name])
        for method in ("fedavg", "ft")
    }
    path = copied("comparison")
    found = [fl.load(path), fl.report(cells), fl.report(old / "comparison.tar.xz")]
    for report in found:
        board = report.leaderboard
        assert dict(zip(board["method"], board["mean"], strict=True)) == pytest.approx(means)
        assert [*board["n"]] == [2, 2]
    assert {*found[0].cells["state"]} == {"finished"}


@pytest.mark.slow
def test_a_comparison_trains_the_cell_that_it_lacks(old, copied):
    path = copied("comparison")
    lost = fl.load(path).cells["path"].iloc[-1]
    shutil.rmtree(lost)

    found = fl.resume(path, progress=False)

    assert {*found.cells["state"]} == {"finished"}
    new, before = (
        fl.load(one).metrics.set_index(["round", "split", "protocol", "metric"])["value"]
        for one in (Path(lost), old / Path(lost).relative_to(path.parent))
    )
    # That version computed metrics of rare classes, which digits do not have.
    before = before[~before.index.get_level_values("metric").str.startswith("rare_")]
    assert new.index.equals(before.index)
    assert np.allclose(new, before, rtol=0, atol=TINY, equal_nan=True)


def test_a_papers_table_is_reported_from_its_runs(old, copied, tmp_path, monkeypatch, capsys):
    for file in copied("paper").rglob("config.yaml"):  # a run names its reference by the whole path
        text = file.read_text("utf-8")
        file.write_text(text.replace("confusable: paper", f"confusable: {tmp_path}/paper"), "utf-8")
    monkeypatch.chdir(tmp_path)
    [words] = [words for words in COMMANDS if words[0] == "reproduce"]
    before = {path.relative_to(old): summary_of(path) for path in runs_below(old / "paper")}

    assert app.main([*words, "--json"]) == 0

    assert "2 runs: 2 finished" in capsys.readouterr().err
    paths = runs_below(tmp_path / "paper")
    assert {path.relative_to(tmp_path): summary_of(path) for path in paths} == before


@pytest.mark.slow
@pytest.mark.mlflow
@needs("mlflow")
def test_folders_are_sent_to_mlflow_once(copied, tmp_path):
    uri = f"sqlite:///{tmp_path / 'flbench.db'}"
    runs = {  # with those of the whole and of its methods
        runs_below(copied("runs"))[0]: 1,
        copied("study"): 1 + 2 + 2 + 4,  # the method is there by default and tuned
        copied("comparison"): 1 + 2 + 4,
    }
    for path, count in runs.items():
        sent, _ = follow.sync(path, uri)
        again, _ = follow.sync(path, uri)

        assert sent.runs == count
        assert sent.metrics > 0
        assert not again
