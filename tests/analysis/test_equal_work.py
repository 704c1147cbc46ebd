"""Reports at equal work: beside a slow reference, and beside runs that really ended there."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import flbench as fl
from flbench.analysis.equal_work import TRAFFIC, until
from flbench.analysis.report import FRAMES
from flbench.core.errors import UserError
from flbench.results import metrics_file, reading
from flbench.results.metrics_file import Row
from flbench.results.summary import metrics_at
from tests.comparison.made import SCORES, matrix, run_folder
from tests.support import run

pytestmark = pytest.mark.slow

METHODS = {"fedavg": [0.5] * 3, "ditto": [0.7] * 3, "local": [0.6] * 3}
ROUNDS = 8


def rewritten(folder, steps, sent, accuracies, splits=("validation", "test")):
    """Give a run costs and accuracies by round.

    Test parts are evaluated after the last round alone if `splits` lacks them.

    Args:
        folder: The run folder.
        steps: Optimizer steps of a round.
        sent: Bytes of the first round, in a set-up; round k has k times as many.
        accuracies: Validation and test accuracies [R, 2].
        splits: What is evaluated after each round.
    """
    rows = []
    for k, pair in enumerate(accuracies, 1):
        rows.append(Row(k, "setup" if k == 1 else "train", "", "up_bytes", sent * k))
        rows.append(Row(k, "train", "", "steps", steps))
        for split, value in zip(("validation", "test"), pair, strict=True):
            if split in splits or k == len(accuracies):
                rows += [Row(k, split, "personal", score, value) for score in SCORES]
    text = metrics_file.header_line() + metrics_file.to_text(rows)
    (folder / "metrics.csv").write_text(text)
    summary = json.loads((folder / "summary.json").read_text())
    best = 1 + int(np.argmax(accuracies[:, 0]))
    summary |= {"last": metrics_at(rows, len(accuracies)), "best": metrics_at(rows, best)}
    summary["communication"]["up_bytes"] = sent * len(accuracies) * (len(accuracies) + 1) // 2
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Three repetitions of three methods with costs and accuracies that were drawn."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(4)
    for (method, _), path in matrix(folder, METHODS, rounds=ROUNDS, seconds=4.0).items():
        sent = 0 if method == "local" else int(rng.integers(100, 400))
        rewritten(path, int(rng.integers(100, 260)), sent, rng.random((ROUNDS, 2)))
    return folder


@pytest.mark.parametrize("at", ["rounds", "steps", "bytes", "seconds"])
def test_scores_are_those_of_a_slow_reference(at, drawn):
    found, spent, files = fl.report(drawn, at=at), {}, {}
    for path in drawn.iterdir():
        method, number = path.name.split("-")
        files[method, number] = rows = pd.read_csv(path / "metrics.csv")
        kinds = {"steps": ["steps"], "bytes": TRAFFIC}.get(at, [])
        costs = rows[rows["split"].isin(["train", "setup"]) & rows["metric"].isin(kinds)]
        for k in range(1, ROUNDS + 1):
            spent[method, number, k] = (
                costs[costs["round"] <= k]["value"].sum() if kinds else k / (1 + (at == "seconds"))
            )

    scores, numbers = [], {}
    for (method, number), rows in files.items():
        ends = [spent[name, number, ROUNDS] for name in METHODS]
        budget = min(end for end in ends if end > 0)
        last = max(k for k in range(1, ROUNDS + 1) if spent[method, number, k] <= budget)
        mine = rows[rows["round"] <= last].pivot_table("value", "round", ["split", "metric"])
        best = mine["validation", "accuracy"].idxmax()
        at_best, at_last = (mine.loc[k, ("test", "accuracy")] for k in (best, last))
        scores.append((method, at_best, at_last, mine["train", "steps"].sum()))
        numbers[method, int(number) + 1] = (best, last)

    table = pd.DataFrame(scores, columns=["method", "mean", "last", "steps"])
    expected = table.groupby("method").mean()
    board = found.leaderboard.set_index("method")
    for column in ("mean", "last"):
        assert board[column].to_dict() == pytest.approx(expected[column].to_dict(), abs=1e-12)
    long = found.long
    ends = long[long["last"] & (long["split"] == "test")].groupby("method")["steps"].mean()
    assert ends.to_dict() == pytest.approx(expected["steps"].to_dict())
    for key, (best, last) in numbers.items():
        mine = long[(long["method"] == key[0]) & (long["repetition"] == key[1])]
        assert {*mine.loc[mine["best"], "round"]} == {best}
        assert {*mine.loc[mine["last"], "round"]} == {last} == {mine["round"].max()}
    assert found.tree()["at"] == at
    assert found.equal == found.answer[:1]
    assert all(name in found.answer[0] for name in METHODS)


def test_equal_rounds_change_nothing_if_all_runs_have_them(drawn):
    whole, equal = fl.report(drawn), fl.report(drawn, at="rounds")
    for name in (*FRAMES, "long"):
        pd.testing.assert_frame_equal(getattr(whole, name), getattr(equal, name))
    assert equal.answer[1:] == whole.answer
    assert equal.warnings == whole.warnings


def test_a_method_with_twice_the_steps_is_read_at_half_its_rounds(tmp_path):
    curve = np.linspace(0.1, 0.8, ROUNDS).repeat(2).reshape(ROUNDS, 2)
    for (method, _), path in matrix(tmp_path, METHODS, rounds=ROUNDS).items():
        rewritten(path, 20 if method == "ditto" else 10, 100, curve)

    found = fl.report(tmp_path, at="steps")

    board = found.leaderboard.set_index("method")
    assert board["mean"].to_dict() == pytest.approx({"fedavg": 0.8, "local": 0.8, "ditto": 0.4})
    assert board.loc["ditto", ["bytes", "seconds"]].tolist() == pytest.approx([1000, 1.0])
    assert "80" in found.answer[0]
    assert "ditto 4" in found.answer[0]
    # What is in files at the best and the last round only is not known of ditto.
    classes = found.classes
    assert classes.query("method == 'ditto'")[["recall", "f1"]].isna().all(axis=None)
    assert classes.query("method != 'ditto'")["recall"].notna().all()
    assert classes["confusable"].any()
    assert found.clients.groupby("method")["accuracy"].count().to_dict()["ditto"] == 0
    assert any("3 of 9 runs" in sentence for sentence in found.warnings)
    labels = {axes.get_xlabel() for axes in found.plot("convergence").axes}
    assert "optimizer steps so far" in labels
    found.write(tmp_path / "report")


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("steps", "does not say its optimizer steps"),
        ("bytes", r"has spent 9\.0 kB when it is first evaluated"),
        ("epochs", "'epochs' is not one of"),
    ],
)
def test_what_is_not_known_is_refused(at, words, tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, rounds=4)
    run_folder(tmp_path / "b", "ditto", 0.5, rounds=4, sent=9000)
    with pytest.raises(UserError, match=words):
        fl.report(tmp_path, at=at)


def test_runs_without_test_metrics_by_round_are_refused(tmp_path):
    curve = np.linspace(0.1, 0.8, ROUNDS).repeat(2).reshape(ROUNDS, 2)
    for name, steps in (("fedavg", 10), ("ditto", 20)):
        path = run_folder(tmp_path / name, name, 0.5, rounds=ROUNDS)
        rewritten(path, steps, 10, curve, splits=("validation",))
    with pytest.raises(UserError, match="ditto has no test accuracy after round 4"):
        fl.report(tmp_path, at="steps")


def test_rounds_in_which_only_another_deployment_was_evaluated_are_not_read(tmp_path):
    curve = np.linspace(0.1, 0.8, ROUNDS).repeat(2).reshape(ROUNDS, 2)
    for name, steps in (("fedavg", 10), ("ditto", 20)):
        rewritten(run_folder(tmp_path / name, name, 0.5, rounds=ROUNDS), steps, 10, curve)
    file = tmp_path / "ditto" / "metrics.csv"
    file.write_text(file.read_text().replace("4,test,personal,", "4,test,personal@before,"))
    file.write_text(file.read_text().replace("4,validation,personal,", "4,test,ft,"))

    found = fl.report(tmp_path, at="steps")

    assert found.leaderboard.set_index("method").loc["ditto", "mean"] == pytest.approx(0.3)
    assert "ditto 3" in found.answer[0]


def test_repetitions_that_lack_a_method_are_left_out(tmp_path):
    curve = np.linspace(0.1, 0.8, ROUNDS).repeat(2).reshape(ROUNDS, 2)
    for name, steps, repetitions in (("fedavg", 10, (0, 2)), ("ditto", 20, (0, 1, 2))):
        for k in repetitions:
            path = run_folder(tmp_path / f"{name}-{k}", name, 0.5, rounds=ROUNDS, repetition=k)
            rewritten(path, steps, 10, curve)

    found = fl.report(tmp_path, at="steps")

    board = found.leaderboard.set_index("method")
    assert board["mean"].to_dict() == pytest.approx({"fedavg": 0.8, "ditto": 0.4})
    assert {*found.long["repetition"]} == {1, 3}
    assert any("left out: 2." in sentence for sentence in found.warnings)
    shutil.rmtree(tmp_path / "fedavg-0")
    shutil.rmtree(tmp_path / "fedavg-2")
    run_folder(tmp_path / "fedavg-3", "fedavg", 0.5, rounds=ROUNDS, repetition=3)
    with pytest.raises(UserError, match="no repetition has all methods"):
        fl.report(tmp_path, at="rounds")


def test_a_run_until_a_round_is_the_run_that_ended_there(tmp_path):
    keys = ("algorithm=ditto", "evaluation.every=1", "evaluation.common.every=1")
    paths = {k: run(tmp_path / str(k), *keys, f"train.rounds={k}")[0] for k in (2, 4)}
    short, long = (reading.read(paths[k]) for k in (2, 4))

    found = until(long, 2)

    for key in ("best", "last", "communication", "steps", "client_trainings", "rounds"):
        assert found.summary[key] == short.summary[key]
    assert found.rows == short.rows
    assert until(long, 4) is long
    if long.summary["best"]["round"] == 4:  # then neither table has the rows of another round
        assert found.clients.select_dtypes("float").isna().all(axis=None)
