"""Methods ranked by a metric of rare classes: `flbench report`, `fl.report` and studies."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import flbench as fl
from flbench.cli import app
from tests.support import run
from tests.tuning import studies

pytestmark = pytest.mark.full  # tests/uses has the same figures in `make test`

METHODS = ("local", "fedavg")
SEEDS = (0, 1)
EXACT = {"rel": 1e-12, "abs": 1e-12}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs on four classes, the first of which has a fifth of the samples of each other one."""
    out = tmp_path_factory.mktemp("rare")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), (40, 200, 200, 200))
    rows = rng.normal(0, 1, (4, 8))[labels] + rng.normal(0, 1, (len(labels), 8))
    np.savez(out / "rare.npz", train_images=rows.astype(np.float32), train_labels=labels)
    keys = ("data.name=npz", f"data.path={out / 'rare.npz'}", "partition.clients=3")
    keys += ("train.rounds=9", "evaluation.every=9", "train.optimizer.lr=0.3")
    keys += ("output.predictions=true", "model.name=mlp")
    return {
        (method, seed): run(out / "runs", f"algorithm={method}", f"seed={seed}", *keys)[0]
        for method in METHODS
        for seed in SEEDS
    }


@pytest.fixture(scope="module")
def expected(folders):
    """Mean over the seeds of the scores of class 0, from the predictions, by method."""
    found = {"rare_recall": {}, "rare_precision": {}, "rare_f1": {}}
    for method in METHODS:
        tables = [pd.read_csv(folders[method, seed] / "predictions.csv") for seed in SEEDS]
        for name in ("recall", "precision", "f1"):
            score = getattr(metrics, f"{name}_score")
            found[f"rare_{name}"][method] = np.mean(
                [
                    score(one["true"], one["predicted"], labels=[0], average="macro")
                    for one in tables
                ]
            )
    return {name: pytest.approx(means, **EXACT) for name, means in found.items()}


def means(board):
    return dict(zip(board["method"], board["mean"], strict=True))


@pytest.mark.parametrize("metric", ["rare_recall", "rare_precision", "rare_f1"])
def test_report_ranks_by_rare_classes(metric, folders, expected):
    found = fl.report(list(folders.values()), metric=metric)

    assert means(found.leaderboard) == expected[metric]
    assert found.leaderboard["mean"].is_monotonic_decreasing
    assert found.leaderboard["mean"].nunique() == len(METHODS)
    assert set(found.classes.query("rare")["class"]) == {0}


def test_study_ranks_by_rare_classes(folders, expected, tmp_path):
    """Cells of a study whose metric is the rare recall, in its own tables and reports."""
    study = studies.begin(tmp_path / "study", *METHODS, metric="rare_recall", seeds=len(SEEDS))
    for (method, seed), folder in folders.items():
        studies.cell(study, folder, method, seed, {})

    own, reported = fl.load(study), fl.report(study, metric="rare_recall")
    assert app.main(["report", str(study), "--metric", "rare_recall"]) == 0
    written = json.loads((study / "report" / "report.json").read_text())

    assert means(own.comparison.leaderboard) == expected["rare_recall"]
    assert means(reported.leaderboard) == expected["rare_recall"]
    assert means(pd.DataFrame(written["leaderboard"])) == expected["rare_recall"]
