"""A run folder in MLflow: few names, everything there, nothing twice."""

import json
import math
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from flbench.config.sources import leaves
from flbench.core.errors import UserError
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.tracking import artifacts, follow, measures, tree
from tests.installed import needs
from tests.support import run
from tests.tracking.reading import artifacts as files_of
from tests.tracking.reading import counts, entries, history, only

pytestmark = [pytest.mark.mlflow, pytest.mark.slow, needs("mlflow")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, _ = run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg", "evaluation.common.every=1")
    return path


@pytest.fixture
def copied(folder, tmp_path):
    """The run under a name of its own, so that tests do not meet in the store."""

    def copy(name: str):
        return shutil.copytree(folder, tmp_path / name)

    return copy


@pytest.fixture(scope="module")
def other(store, folder, tmp_path_factory):
    """A run that was sent, and how much MLflow has of it."""
    path = shutil.copytree(folder, tmp_path_factory.mktemp("runs") / "x")
    follow.sync(path, store.address.uri)
    return path, counts(store, path)


def test_run_has_its_parameters_files_and_data_set(store, other, tmp_path):
    path, _ = other
    about = json.loads((path / "partition.json").read_text())

    entry = store.client.get_run(only(store, path).info.run_id)

    config = yaml.safe_load((path / "config.yaml").read_text())
    wanted = {key for key in leaves(config) if not key.startswith("tracking.")}
    assert set(entry.data.params) == wanted
    assert entry.data.params["train.rounds"] == "3"
    assert json.loads(entry.data.params["partition.split"]) == [0.6, 0.2, 0.2]
    there = files_of(store, entry)
    assert there >= {"config.yaml", "summary.json", "report.html", "clients.csv", "confusion.csv"}
    for name in ("per_class.csv", "checkpoints/best.safetensors"):
        copy = store.client.download_artifacts(entry.info.run_id, name, str(tmp_path))
        assert (path / name).read_bytes() == Path(copy).read_bytes()
    assert (entry.data.tags["dataset"], entry.data.tags["partition"]) == ("digits", about["hash"])


def test_metrics_are_those_of_the_best_round_with_curves_and_at_most_ten_digits(store, other):
    path, _ = other
    summary = json.loads((path / "summary.json").read_text())
    best, rows = summary["best"], metrics_file.read(path / "metrics.csv")

    entry = only(store, path)

    found, points = entry.data.metrics, history(store, entry)
    assert len(found) <= measures.MOST
    for name in ("accuracy_mean", "balanced_accuracy", "macro_f1", "worst10_accuracy"):
        assert found[name] == pytest.approx(best["test"][name], rel=1e-9)
    assert (found["cost/best_round"], found["cost/steps"]) == (best["round"], summary["steps"])
    for name in ("validation/accuracy", "test/accuracy", "train/loss"):
        split, metric = name.split("/")
        wanted = [
            (row.round, measures.rounded(row.value))
            for row in rows
            if (row.split, row.metric) == (split, metric) and row.protocol in ("", "personal")
        ]
        assert sorted((step, value) for key, step, value in points if key == name) == wanted
    # MLflow's pages show all digits.
    assert all(float(f"{value:.10g}") == value or value % 1 == 0 for _, _, value in points)


def test_what_ranks_methods_and_what_users_log_have_curves_and_only_few_others(tmp_path):
    rows = [
        *(Row(1, "test", "personal", name, 0.5) for name in ("accuracy", "macro_f1", "ece")),
        *(Row(1, "log", "", f"mine{k}", 0.5) for k in range(3)),
        *(Row(1, "server", "", f"a${k}", 0.5) for k in range(9)),
        *(Row(1, "train", "", name, 2.0) for name in ("loss", "up_bytes")),
        Row(1, "test", "head", "accuracy", 0.5),
        Row(0, "setup", "", "up_bytes", 5.0),
    ]
    file = tmp_path / "metrics.csv"
    file.write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    found = [point.name for point in measures.curves(file, "macro_f1")]

    tests = ["test/accuracy", "test/macro_f1"]
    assert found == [*tests, "log/mine0", "log/mine1", "log/mine2", "server/a-0"]


HEADER = "moment,class,name,train_support,test_support,precision,recall,f1,rare,confusable"
ONE = {
    "communication": {"up_bytes": 1, "down_bytes": 2, "peer_bytes": 0},
    "seconds": {"total": 1.5},
}


def valued(folder, metric, used=0, *, test, validation=(), classes=()):
    """The values of a run whose best round is the second one."""
    best = {"round": 2, "validation": validation, "test": test}
    (folder / "summary.json").write_text(json.dumps(ONE | {"best": best}))
    (folder / "per_class.csv").write_text("\n".join([HEADER, *classes, ""]))
    points = measures.values(folder, metric, used)
    assert {point.step for point in points} == {2}
    return {point.name: point.value for point in points}


@pytest.mark.parametrize("count", [2, 20, 21])
def test_classes_have_metrics_up_to_twenty_and_rare_ones_come_before_others(tmp_path, count):
    classes = [f"last,{k},c/{k},9,{9 * (k != 1)},0.5,0.25,0.75,0,0" for k in range(count)]
    tests = dict.fromkeys([f"own{k}" for k in range(50)] + ["accuracy", "rare_recall", "gm"], 0.5)

    found = valued(tmp_path, "own3", 3, test=tests | {"x": {}}, classes=classes)

    assert [*found][:3] == ["own3", "accuracy", "rare_recall"]
    for name in ("f1/c-0", "recall/c-0", "f1/c-1", "recall/c-1"):
        assert (name in found) == (count <= 20)
    without = {name for name, value in found.items() if math.isnan(value)}
    assert without <= {"f1/c-1", "recall/c-1"}  # the test parts have none of it
    assert len(found) + 3 <= (measures.MOST if count != 20 else 60)
    assert (found["cost/down_bytes"], found["cost/seconds"]) == (2, 1.5)


def test_metrics_of_other_deployments_have_names_of_their_own(tmp_path):
    own = {"accuracy": 0.5, "macro_f1": 0.25, "mine": 7.0, "client_std": 0.1, "gm": 0.75}
    other = {"accuracy": 0.875, "macro_f1": 0.375, "mine": 3.0, "odd": float("inf")}
    test = {**own, "noft": other, "new@5": {"accuracy": 0.625, "macro_f1": 0.125}}

    found = valued(tmp_path, "macro_f1", test=test)

    assert {name: one for name, one in found.items() if not name.startswith("cost/")} == {
        "gm/accuracy": 0.75,  # the metric that chooses the best round, whatever ranks
        "macro_f1": 0.25,
        "accuracy": 0.5,
        "mine": 7.0,
        "client_std": 0.1,
        "noft/macro_f1": 0.375,
        "new-5/macro_f1": 0.125,
    }


def test_classes_whose_names_are_one_in_mlflow_are_told_apart(tmp_path):
    names = enumerate(("a+", "a*", "b", "."))
    classes = [f"best,{k},{name},9,9,0.5,0.{k + 1},0.5,0,0" for k, name in names]

    found = valued(tmp_path, "accuracy", test={}, classes=classes)

    assert {name: one for name, one in found.items() if name.startswith("recall/")} == {
        "recall/class 0 a-": 0.1,
        "recall/class 1 a-": 0.2,
        "recall/b": 0.3,
        "recall/class 3": 0.4,
    }


def test_run_below_a_folder_named_trials_is_a_whole_run(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "trials" / "mine" / "x")

    node, _ = tree.training(path, is_over=True)

    assert {"summary.json", "report.html"} <= {file.name for file in node.files}


@pytest.mark.parametrize(
    "name", ["x' OR '1'='1", 'a"b`c\\', "100% %27", "a\nb\x1b[31mc", os.fsdecode(b"run\xff")]
)
def test_any_name_of_a_folder_finds_its_own_run_and_no_other(store, copied, other, name):
    path = copied(name)
    other, before = other

    first, _ = follow.sync(path, store.address.uri)
    second, _ = follow.sync(path, store.address.uri)

    [entry] = entries(store, "flbench.run", tree.identifier(name))
    assert first.runs == 1
    assert not second
    assert counts(store, other) == before
    assert "\x1b" not in entry.info.run_name + entry.data.tags["flbench.run"]


def test_second_sync_sends_nothing_and_what_is_sent_again_changes_nothing(store, copied):
    path = copied("twice")
    first, _ = follow.sync(path, store.address.uri)
    before = counts(store, path)
    second, _ = follow.sync(path, store.address.uri)
    run = only(store, path).info.run_id
    store.client.set_tag(run, "mlflow.flbench.sent", "7 0000")

    again, _ = follow.sync(path, store.address.uri)

    assert first.metrics
    assert not second
    assert again.metrics > 0
    assert counts(store, path) == before


def test_figures_of_a_growing_file_are_sent_once_and_a_half_line_waits(store, copied):
    path = copied("growing")
    (path / "summary.json").unlink()
    whole = (path / "metrics.csv").read_text()
    cut = whole.index("\n", whole.index(",validation,")) + 5  # within a line
    (path / "metrics.csv").write_text(whole[:cut])
    first, _ = follow.sync(path, store.address.uri)
    (path / "metrics.csv").write_text(whole)

    second, _ = follow.sync(path, store.address.uri)

    points = measures.curves(path / "metrics.csv", "accuracy")
    assert len(history(store, only(store, path))) == len(points)
    assert first.metrics
    assert second.metrics == len(points) - first.metrics


def test_rewound_figures_are_sent_again(store, copied):
    path = copied("rewound")
    (path / "summary.json").unlink()
    rows = metrics_file.read(path / "metrics.csv")
    at = next(k for k, row in enumerate(rows) if row.metric == "loss")
    for changed in (rows[at]._replace(value=123.0), rows[at]):
        text = metrics_file.to_text([*rows[:at], changed, *rows[at + 1 :]])
        (path / "metrics.csv").write_text(metrics_file.header_line() + text)
        follow.sync(path, store.address.uri)

    found = history(store, only(store, path))
    assert ("train/loss", rows[at].round, measures.rounded(rows[at].value)) in found


def test_run_is_found_again_from_within_its_folder(store, copied, monkeypatch):
    path = copied("within")
    follow.sync(path, store.address.uri)
    monkeypatch.chdir(path)

    again, _ = follow.sync(Path(), store.address.uri)

    assert not again
    assert entries(store, "flbench.run", "") == []


def test_values_of_a_longer_run_replace_those_before(store, copied):
    """MLflow keeps both, and shows that of the later round."""
    path = copied("longer")
    summary = json.loads((path / "summary.json").read_text())
    for number, accuracy in ((2, 0.75), (3, 0.5)):
        summary["best"] |= {"round": number}
        summary["best"]["test"] |= {"accuracy": accuracy}
        (path / "summary.json").write_text(json.dumps(summary))
        follow.sync(path, store.address.uri)

    assert only(store, path).data.metrics["accuracy"] == 0.5


def test_run_that_another_process_continues_is_running(store, copied):
    path, states = copied("running"), []
    (path / "summary.json").unlink()
    for context in (FileLock(path / ".lock"), nullcontext()):
        with context:
            follow.sync(path, store.address.uri)
        states.append(only(store, path).info.status)

    assert states == ["RUNNING", "KILLED"]


@pytest.mark.parametrize("kind", ["copy", "another", "large"])
def test_two_checkpoints_with_one_content_are_sent_once_and_no_large_one(
    store, copied, kind, monkeypatch
):
    path = copied(f"checkpoints-{kind}")
    last, best = (path / "checkpoints" / f"{name}.safetensors" for name in ("last", "best"))
    best.unlink(missing_ok=True)
    best.write_bytes(last.read_bytes() + (b"1" if kind == "another" else b""))
    if kind == "large":
        monkeypatch.setattr(artifacts, "MAX_CHECKPOINT_BYTES", 10)

    follow.sync(path, store.address.uri)

    entry = only(store, path)
    there = files_of(store, entry, "checkpoints")
    both = {"checkpoints/last.safetensors", "checkpoints/best.safetensors"}
    wanted = {"another": both, "large": set()}.get(kind, {"checkpoints/best.safetensors"})
    assert both & there == wanted


def test_deleted_experiment_is_an_error(store, copied):
    path = copied("gone")
    text = (path / "config.yaml").read_text().replace("experiment: null", "experiment: gone")
    (path / "config.yaml").write_text(text)
    follow.sync(path, store.address.uri)
    store.client.delete_experiment(store.client.get_experiment_by_name("gone").experiment_id)

    with pytest.raises(UserError, match="`gone`"):
        follow.sync(path, store.address.uri)
