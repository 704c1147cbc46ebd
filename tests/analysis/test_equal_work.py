"""Reports at equal work: beside a slow reference, and beside runs that really ended there."""

import json

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


def test_equal_rounds_change_nothing_if_all_runs_have_them(drawn):
    whole, equal = fl.report(drawn), fl.report(drawn, at="rounds")
    for name in (*FRAMES, "long"):
        pd.testing.assert_frame_equal(getattr(whole, name), getattr(equal, name))
    assert equal.warnings == whole.warnings


CURVE = np.linspace(0.1, 0.8, ROUNDS).repeat(2).reshape(ROUNDS, 2)


def two(folder, repetitions=((0,), (0,)), **options):
    """FedAvg, and Ditto with twice its steps in each round, with the same accuracies."""
    for name, steps, numbers in zip(("fedavg", "ditto"), (10, 20), repetitions, strict=True):
        for k in numbers:
            path = run_folder(folder / f"{name}-{k}", name, 0.5, rounds=ROUNDS, repetition=k)
            rewritten(path, steps, 100, CURVE, **options)
    return folder


def means(found):
    return found.leaderboard.set_index("method")["mean"].to_dict()


def test_a_method_with_twice_the_steps_is_read_at_half_its_rounds(tmp_path):
    found = fl.report(two(tmp_path), at="steps")

    assert means(found) == pytest.approx({"fedavg": 0.8, "ditto": 0.4})
    costs = found.leaderboard.set_index("method").loc["ditto", ["bytes", "seconds"]]
    assert costs.tolist() == pytest.approx([1000, 1.0])
    assert "80" in found.answer[0]
    assert "ditto 4" in found.answer[0]
    # What is in files at the best and the last round only is not known of ditto.
    classes = found.classes.set_index("method")
    assert classes.loc["ditto", ["recall", "f1"]].isna().all(axis=None)
    assert classes.loc["fedavg", "recall"].notna().all()
    assert classes["confusable"].any()
    assert found.clients.groupby("method")["accuracy"].count().to_dict()["ditto"] == 0
    assert any("1 of 2" in sentence for sentence in found.warnings)
    assert "optimizer steps so far" in {one.get_xlabel() for one in found.plot("convergence").axes}
    found.write(tmp_path / "report")


@pytest.mark.parametrize(
    ("at", "key"), [("steps", "optimizer steps"), ("bytes", r"9\.0 kB"), ("epochs", "'epochs'")]
)
def test_what_is_not_known_is_refused(at, key, tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, rounds=4)
    run_folder(tmp_path / "b", "ditto", 0.5, rounds=4, sent=9000)
    with pytest.raises(UserError, match=key):
        fl.report(tmp_path, at=at)


def test_only_rounds_in_which_the_deployed_models_were_evaluated_are_read(tmp_path):
    file = two(tmp_path / "a") / "ditto-0" / "metrics.csv"
    file.write_text(file.read_text().replace("4,test,personal,", "4,test,personal@before,"))
    file.write_text(file.read_text().replace("4,validation,personal,", "4,test,ft,"))

    assert means(fl.report(tmp_path / "a", at="steps"))["ditto"] == pytest.approx(0.3)
    with pytest.raises(UserError, match=r"ditto-0.* accuracy after round 4"):
        fl.report(two(tmp_path / "b", splits=("validation",)), at="steps")


def test_repetitions_that_lack_a_method_are_left_out(tmp_path):
    found = fl.report(two(tmp_path / "a", ((0, 2), (0, 1, 2))), at="steps")

    assert means(found) == pytest.approx({"fedavg": 0.8, "ditto": 0.4})
    assert {*found.long["repetition"]} == {1, 3}
    with pytest.raises(UserError, match="repetition"):
        fl.report(two(tmp_path / "b", ((3,), (0, 1))), at="rounds")


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
