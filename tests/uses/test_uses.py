"""The three uses of flbench, and the two ways to bring a method and a script, from end to end.

Each number that a user reads is computed again here: from the files of single runs by pandas and
scikit-learn, or from predictions for the samples themselves.
"""

import json
import re
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, recall_score

import flbench as fl
from flbench.cli.app import main
from tests.installed import needs

SIZES = (180, 139, 107, 83, 64, 50, 38, 30, 23, 18)
"""Images of each digit, from 0 to 9: the last two are the rarest fifth of the classes."""
RARE = [8, 9]
TEST = 2
"""Number of the test part in partition.npz."""
SETTING = ("--rounds", "6", "partition.clients=5", "partition.alpha=0.5", "train.optimizer.lr=0.1")
MLP = ("model=mlp", "engine.name=sequential", "engine.threads=1", "engine.workers=1")
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of a user, with a file of images in which some digits are rare."""
    folder = tmp_path_factory.mktemp("uses")
    x, y = load_digits(return_X_y=True)
    kept = np.sort(np.concatenate([np.flatnonzero(y == k)[:n] for k, n in enumerate(SIZES)]))
    images = (x[kept] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    np.savez(folder / "tail.npz", train_images=images, train_labels=y[kept])
    return folder


def flbench(folder: Path, *arguments: str) -> None:
    """Run a command in a folder; it must succeed."""
    with chdir(folder):
        assert main(list(arguments)) == 0


@pytest.fixture(scope="module")
def comparison(folder):
    flbench(
        folder,
        *("compare", "fedavg", "fedper", "local", "--seeds", "3", "--data", "tail.npz"),
        *("tracking.mlflow=false", *SETTING, *MLP),
    )
    [found] = (folder / "comparisons").iterdir()
    return found


@pytest.fixture(scope="module")
def study(folder):
    """A study with its mirror in MLflow, in `mlflow.db`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        flbench(
            folder,
            *("tune", "fedper", "hfcd", "--metric", "rare_recall", "--trials", "2", "--seeds", "2"),
            *("--jobs", "1", "--scheduler", "none", "data.path=tail.npz"),
            *(f"tracking.uri=sqlite:///{folder}/mlflow.db", "tracking.mlflow=true", *SETTING, *MLP),
        )
    [found] = (folder / "studies").iterdir()
    return found


def of_best(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the best round, which the file leaves out if it is the last round."""
    best = table.query("moment == 'best'")
    return table if best.empty else best


def rare_recall(run: Path) -> float:
    """Return the mean test recall of the rare digits in the best round."""
    table = of_best(pd.read_csv(run / "per_class.csv")).set_index("class")
    present = [digit for digit in RARE if table.test_support[digit] > 0]
    return float(np.mean(table.recall[present]))


def samples_of(counts: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Return true and predicted classes, one entry for each sample, from confusion counts."""
    repeated = counts.loc[counts.index.repeat(counts["count"])]
    return repeated["true"].tolist(), repeated["predicted"].tolist()


# A report by rare-class recall


@pytest.fixture(scope="module")
def ranked(folder, comparison):
    """What the report says that is ordered by the recall of rare classes."""
    flbench(
        folder, *("report", str(comparison), "--metric", "rare_recall,macro_f1", "--out", "ranked")
    )
    return json.loads((folder / "ranked" / "report.json").read_text())


def test_a_report_ranks_by_the_recall_of_rare_classes(comparison, ranked):
    expected = {
        method: np.mean([rare_recall(run) for run in comparison.glob(f"cells/{method}-*")])
        for method in ("fedavg", "fedper", "local")
    }

    found = {row["method"]: row["mean"] for row in ranked["leaderboard"]}

    assert found == pytest.approx(expected, abs=1e-12)
    assert len(set(found.values())) == 3  # otherwise there is no order to speak of
    assert list(found) == sorted(expected, key=expected.get, reverse=True)


def test_a_report_has_the_f1_of_each_class(comparison, ranked):
    for method in ("fedavg", "fedper", "local"):
        files = comparison.glob(f"cells/{method}-*/per_class.csv")
        best = pd.concat(of_best(pd.read_csv(file)) for file in files)
        expected = best.groupby("class").f1.mean()

        found = {int(row["class"]): row for row in ranked["classes"] if row["method"] == method}

        assert {k: row["f1"] for k, row in found.items()} == pytest.approx(dict(expected))
        assert [k for k, row in found.items() if row["rare"]] == RARE


def test_figures_of_classes_are_those_of_scikit_learn(comparison):
    for run in comparison.glob("cells/*"):
        true, predicted = samples_of(pd.read_csv(run / "confusion.csv").query("split == 'test'"))
        table = pd.read_csv(run / "per_class.csv").query("moment == 'last'")
        last = json.loads((run / "summary.json").read_text())["last"]["test"]

        recall = recall_score(true, predicted, labels=range(10), average=None, zero_division=0)
        f1 = f1_score(true, predicted, labels=range(10), average=None, zero_division=0)
        present = [digit for digit in RARE if digit in true]

        assert table.recall.fillna(0).tolist() == pytest.approx(recall.tolist())
        assert table.f1.fillna(0).tolist() == pytest.approx(f1.tolist())
        assert last["rare_recall"] == pytest.approx(recall[present].mean())
        assert last["rare_f1"] == pytest.approx(f1[present].mean())


def test_a_script_gets_the_same_report(comparison, ranked):
    report = fl.report(comparison, metric="rare_recall")

    found = report.leaderboard.set_index("method")["mean"]

    assert dict(found) == pytest.approx(
        {row["method"]: row["mean"] for row in ranked["leaderboard"]}
    )


# A study, from its search to its table and to MLflow


def cells_of(study: Path) -> dict[str, list[Path]]:
    """Return the folders of the cells by the name of their row in the table."""
    found: dict[str, list[Path]] = {}
    for cell in json.loads((study / "comparison.json").read_text())["cells"]:
        found.setdefault(cell["method"], []).append(study / "cells" / cell["name"])
    return found


@needs("ray")
@needs("mlflow")
@pytest.mark.mlflow
def test_a_study_ends_in_the_table_of_its_cells(study):
    report = json.loads((study / "report.json").read_text())
    results = report["search"]
    for method in ("fedper", "hfcd"):
        trials = [json.loads(f.read_text()) for f in study.glob(f"trials/{method}/*/trial.json")]
        winner = results["methods"][method]["winner"]
        assert len(trials) == 2
        assert winner["score"] == max(trial["score"] for trial in trials)
        assert winner["params"] == next(
            trial["params"] for trial in trials if trial["index"] == winner["index"]
        )
    expected = {
        name: np.mean([rare_recall(run) for run in runs]) for name, runs in cells_of(study).items()
    }

    found = {row["method"]: row["mean"] for row in report["leaderboard"]}

    assert found == pytest.approx(expected, abs=1e-12)
    tuned = {f"{name} tuned" for name, one in results["methods"].items() if one["winner"]["index"]}
    assert set(found) == {"fedper", "hfcd", *tuned}
    assert list(found.values()) == sorted(found.values(), reverse=True)


@needs("ray")
@needs("mlflow")
@pytest.mark.mlflow
def test_the_report_of_a_study_has_the_table_that_the_study_ended_with(study, folder):
    flbench(folder, "report", str(study), "--metric", "rare_recall", "--out", "of-the-study")

    own = json.loads((study / "report.json").read_text())["leaderboard"]
    found = json.loads((folder / "of-the-study" / "report.json").read_text())["leaderboard"]

    assert {row["method"]: row["mean"] for row in found} == {
        row["method"]: row["mean"] for row in own
    }


@needs("ray")
@needs("mlflow")
@pytest.mark.mlflow
def test_mlflow_has_the_figures_of_the_study(study, folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = {run.info.run_name: run for run in client.search_runs(experiments)}

    for method in ("fedper", "hfcd"):
        for file in study.glob(f"trials/{method}/*/trial.json"):
            trial = json.loads(file.read_text())
            metrics = runs[f"{method} {trial['index']:03d}"].data.metrics
            assert metrics["validation/rare_recall"] == pytest.approx(trial["score"], abs=1e-9)
    for name, cells in cells_of(study).items():
        for run in cells:
            found = runs[f"{run.name.rpartition('-')[2]} {name}"].data
            assert found.tags["method"] == name
            assert found.metrics["rare_recall"] == pytest.approx(rare_recall(run), abs=1e-9)
            recall = of_best(pd.read_csv(run / "per_class.csv")).set_index("class")
            for number, value in recall["recall"].dropna().items():
                assert found.metrics[f"recall/{number}"] == pytest.approx(value, abs=1e-9)
        mean = np.mean([rare_recall(run) for run in cells])
        assert runs[name].data.metrics["rare_recall"] == pytest.approx(mean, abs=1e-9)
        assert runs[study.name].data.metrics[f"rare_recall/{name}"] == pytest.approx(mean, abs=1e-9)
    assert max(len(run.data.metrics) for run in runs.values()) <= 40


# A method of the user's own, and a script


@needs("ray")
@needs("mlflow")
@pytest.mark.mlflow
def test_the_best_parameters_of_a_study_are_compared_with_other_methods(study, folder):
    flbench(
        folder,
        *("compare", "hfcd", "local", "--tuned", str(study), "--seeds", "1", "--out", "tuned"),
        *("data.path=tail.npz", "tracking.mlflow=false", *SETTING, *MLP),
    )

    [cell] = (folder / "tuned").glob("*/cells/hfcd*")
    winner = json.loads((study / "report.json").read_text())["search"]["methods"]["hfcd"]["winner"]
    algorithm = fl.load(cell).config.algorithm
    for key, value in winner["params"].items():
        assert getattr(algorithm, key.removeprefix("algorithm.")) == value


def test_a_method_of_ones_own_is_trained_from_the_file_that_the_readme_prints(folder):
    [source] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (folder / "firstlayer.py").write_text(source)
    words = ("data.path=tail.npz", "tracking.mlflow=false", "output.dir=own", *SETTING, *MLP)

    # The readme names this method as the idea of LG-FedAvg without its keys.
    lgfedavg = ("algorithm.layers=2", "algorithm.warmup=0", "algorithm.agg_weights=samples")

    flbench(folder, "run", "firstlayer.py:FirstLayer", *words)
    flbench(folder, "run", "lgfedavg", *lgfedavg, *words)

    own, known = (
        json.loads(next((folder / "own").glob(f"*/*{name}*/summary.json")).read_text())
        for name in ("firstlayer", "lgfedavg")
    )
    # 64 pixels, two hidden layers of 128 and 64 units: all but the first layer is sent, as float32.
    sent = 4 * (128 * 64 + 64 + 64 * 10 + 10)
    assert own["communication"]["up_bytes"] == sent * own["client_trainings"]
    assert own["communication"] == known["communication"]
    assert own["weights_digest"] == known["weights_digest"]


def test_a_script_gets_the_figures_of_its_own_predictions(folder):
    run = fl.run(
        "fedper",
        data={"path": str(folder / "tail.npz")},
        partition={"clients": 5, "alpha": 0.5},
        model="mlp",
        train={"rounds": 6, "optimizer": {"lr": 0.1}},
        engine={"name": "sequential", "threads": 1, "workers": 1},
        tracking={"mlflow": False},
        output={"dir": str(folder / "script")},
    )
    with np.load(folder / "tail.npz") as file:
        images, labels = file["train_images"], file["train_labels"]
    partition = np.load(run.path / "partition.npz")
    clients = run.clients.query("moment == 'best'").set_index("client")

    true, predicted = [], []
    for client in range(5):
        test = partition["index"][(partition["client"] == client) & (partition["part"] == TEST)]
        classes = run.predict(images[test], client=client).argmax(1).numpy()
        true += labels[test].tolist()
        predicted += classes.tolist()
        assert clients.accuracy[client] == pytest.approx(np.mean(labels[test] == classes))

    recall = recall_score(true, predicted, labels=range(10), average=None, zero_division=0)
    best = run.summary["best"]["test"]
    assert best["accuracy"] == pytest.approx(np.mean(np.equal(true, predicted)))
    assert best["rare_recall"] == pytest.approx(recall[RARE].mean())
    assert run.per_class.query("moment == 'best'").recall.tolist() == pytest.approx(recall.tolist())
