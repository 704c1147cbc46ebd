"""A run folder in MLflow: few names, everything there, nothing twice."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from filelock import FileLock

from flbench.config.sources import leaves
from flbench.core.errors import DataError, UserError
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.tracking import artifacts, follow, measures, tree
from tests.installed import needs
from tests.support import interrupted_run, run
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


def test_run_has_every_parameter_under_its_path(store, other):
    found = only(store, other[0]).data.params

    config = yaml.safe_load((other[0] / "config.yaml").read_text())
    wanted = {key for key in leaves(config) if not key.startswith("tracking.")}
    assert set(found) == wanted
    assert found["train.rounds"] == "3"
    assert json.loads(found["partition.split"]) == [0.6, 0.2, 0.2]
    assert found["algorithm.name"] == "fedavg"


def test_run_has_few_metrics_those_of_the_best_round_and_of_classes_and_their_curves(store, other):
    path, _ = other
    summary = json.loads((path / "summary.json").read_text())
    best = summary["best"]
    classes = pd.read_csv(path / "per_class.csv").query("moment == 'best'")
    rows = metrics_file.read(path / "metrics.csv")

    entry = only(store, path)

    found = entry.data.metrics
    assert len(found) <= measures.MOST
    for name in ("accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1", "worst10_accuracy"):
        assert found[name] == pytest.approx(best["test"][name], rel=1e-9)
    assert (found["cost/best_round"], found["cost/steps"]) == (best["round"], summary["steps"])
    for kind in ("f1", "recall"):
        for name, value in zip(classes["name"], classes[kind], strict=True):
            assert found[f"{kind}/{name}"] == pytest.approx(value, rel=1e-9)
    for name in ("validation/accuracy", "test/accuracy", "train/loss"):
        split, metric = name.split("/")
        wanted = [
            (row.round, measures.rounded(row.value))
            for row in rows
            if (row.split, row.metric) == (split, metric) and row.protocol in ("", "personal")
        ]
        curve = [(step, value) for key, step, value in history(store, entry) if key == name]
        assert sorted(curve) == wanted


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


@pytest.mark.parametrize("count", [2, 20, 21])
def test_classes_have_metrics_up_to_twenty_and_rare_ones_come_before_others(tmp_path, count):
    header = "moment,class,name,train_support,test_support,precision,recall,f1,rare,confusable"
    lines = [f"last,{k},c/{k},9,{9 * (k != 1)},0.5,0.25,0.75,0,0" for k in range(count)]
    (tmp_path / "per_class.csv").write_text("\n".join([header, *lines, ""]))
    validation = dict.fromkeys([f"own{k}" for k in range(50)] + ["accuracy", "rare_recall"], 0.5)
    about = {
        "best": {"round": 2, "validation": validation, "test": validation | {"gm": 0.5, "x": {}}},
        "communication": {"up_bytes": 1, "down_bytes": 2, "peer_bytes": 0},
        "seconds": {"total": 1.5},
    }
    (tmp_path / "summary.json").write_text(json.dumps(about))

    points = measures.values(tmp_path, "own3", 3)

    found = {point.name: point.value for point in points}
    assert [point.name for point in points][:3] == ["own3", "accuracy", "rare_recall"]
    assert ("f1/c-0" in found) == ("recall/c-0" in found) == (count <= 20)
    assert ("f1/c-1" in found) == ("recall/c-1" in found) == (count <= 20)
    without = {name for name, value in found.items() if math.isnan(value)}
    assert without <= {"f1/c-1", "recall/c-1"}  # the test parts have none of it
    assert len(found) + 3 <= (measures.MOST if count != 20 else 60)
    assert (found["cost/down_bytes"], found["cost/seconds"]) == (2, 1.5)
    assert {point.step for point in points} == {2}


def test_metrics_of_other_deployments_have_names_of_their_own(tmp_path):
    own = {"accuracy": 0.5, "macro_f1": 0.25, "mine": 7.0, "client_std": 0.1, "gm": 0.75}
    other = {"accuracy": 0.875, "macro_f1": 0.375, "mine": 3.0, "odd": float("inf")}
    test = {**own, "noft": other, "new@5": {"accuracy": 0.625, "macro_f1": 0.125}}
    about = {
        "best": {"round": 2, "validation": {}, "test": test},
        "communication": {},
        "seconds": {"total": 1.5},
    }
    (tmp_path / "summary.json").write_text(json.dumps(about))

    points = measures.values(tmp_path, "macro_f1", 0)

    assert {one.name: one.value for one in points if not one.name.startswith("cost/")} == {
        "gm/accuracy": 0.75,  # the metric that chooses the best round, whatever ranks
        "macro_f1": 0.25,
        "accuracy": 0.5,
        "mine": 7.0,
        "client_std": 0.1,
        "noft/macro_f1": 0.375,
        "new-5/macro_f1": 0.125,
    }


def test_classes_whose_names_are_one_in_mlflow_are_told_apart(tmp_path):
    lines = ["moment,class,name,train_support,test_support,precision,recall,f1,rare,confusable"]
    names = enumerate(("a+", "a*", "b", "."))
    lines += [f"best,{k},{name},9,9,0.5,0.{k + 1},0.5,0,0" for k, name in names]
    (tmp_path / "per_class.csv").write_text("\n".join([*lines, ""]))
    about = {"round": 1, "test": {}}
    summary = {"best": about, "communication": {}, "seconds": {"total": 1.0}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))

    points = measures.values(tmp_path, "accuracy", 0)

    found = {one.name: one.value for one in points if one.name.startswith("recall/")}
    assert found == {
        "recall/class 0 a-": 0.1,
        "recall/class 1 a-": 0.2,
        "recall/b": 0.3,
        "recall/class 3": 0.4,
    }


def test_run_below_a_folder_named_trials_is_a_whole_run(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "trials" / "mine" / "x")

    [node] = tree.training(path, is_over=True).nodes

    assert {"summary.json", "report.html"} <= {file.name for file in node.files}


def test_no_number_has_more_than_ten_digits(store, copied, tmp_path):
    """MLflow's pages show all digits. Whole numbers, such as bytes, stay exact."""
    path = copied("digits")
    config = path / "config.yaml"
    config.write_text(re.sub(r"lr: [0-9.]+", "lr: 0.012345678901234567", config.read_text()))
    summary = json.loads((path / "summary.json").read_text())
    summary["communication"]["up_bytes"] = 123_456_789_012
    (path / "summary.json").write_text(json.dumps(summary))

    follow.sync(path, store.address.uri)

    entry = only(store, path)
    values = [value for _, _, value in history(store, entry)]
    digits = [repr(value).partition("e")[0].replace(".", "").lstrip("0") for value in values]
    assert len([value for value in values if value % 1]) > 20
    assert all(len(one) <= 10 for one, value in zip(digits, values, strict=True) if value % 1)
    assert entry.data.metrics["cost/up_bytes"] == 123_456_789_012
    assert entry.data.params["train.optimizer.lr"] == "0.0123456789"


@pytest.mark.parametrize(
    "name", ["x' OR '1'='1", 'a"b`c\\', "100% %27", "a\nb\x1b[31mc", "Zoë 北京"]
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


def test_folder_whose_name_is_not_text_is_sent(store, folder, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    shutil.copytree(folder, path)

    first, _ = follow.sync(path, store.address.uri)
    second, _ = follow.sync(path, store.address.uri)

    assert first.runs == 1
    assert not second


def test_files_arrive_as_they_are(store, copied, tmp_path):
    path = copied("files")
    written = path / "per_class.csv"
    written.write_text(written.read_text().replace("last,1,1,", "last,1,01_1,"))

    follow.sync(path, store.address.uri)

    entry = only(store, path)
    there = {item.path for item in store.client.list_artifacts(entry.info.run_id)}
    assert there >= {"config.yaml", "summary.json", "report.html", "clients.csv", "confusion.csv"}
    assert "partition.json" in there
    for name in ("per_class.csv", "checkpoints/best.safetensors"):
        copy = store.client.download_artifacts(entry.info.run_id, name, str(tmp_path))
        assert (path / name).read_bytes() == Path(copy).read_bytes()
    assert "f1/01_1" in entry.data.metrics


def test_data_set_is_an_input_with_the_digest_of_its_content(store, other):
    about = json.loads((other[0] / "partition.json").read_text())

    entry = store.client.get_run(only(store, other[0]).info.run_id)

    [found] = entry.inputs.dataset_inputs
    assert found.dataset.name == "digits"
    assert found.dataset.digest == about["data"][:32]
    assert json.loads(found.dataset.profile) == {"classes": 10}
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "training")]
    assert entry.data.tags["flbench.data"] == about["data"]
    assert entry.data.tags["partition"] == about["hash"]


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


def test_interrupted_run_is_killed_and_its_resumption_continues_the_same_entry(store, tmp_path):
    from flbench.config.sources import Layer
    from flbench.experiment import lifecycle

    path = interrupted_run(tmp_path, "algorithm=fedavg")
    follow.sync(path, store.address.uri)
    killed = only(store, path)

    lifecycle.resume(path, Layer({}))
    follow.sync(path, store.address.uri)

    resumed = only(store, path)
    assert killed.info.status == "KILLED"
    assert resumed.info.run_id == killed.info.run_id
    assert resumed.info.status == "FINISHED"
    wanted = json.loads((path / "summary.json").read_text())["last"]["test"]["accuracy"]
    assert resumed.data.metrics["test/accuracy"] == measures.rounded(wanted)


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
    path = copied("running")
    (path / "summary.json").unlink()
    with FileLock(path / ".lock"):
        follow.sync(path, store.address.uri)
        running = only(store, path).info.status

    follow.sync(path, store.address.uri)

    assert running == "RUNNING"
    assert only(store, path).info.status == "KILLED"


@pytest.mark.parametrize("kind", ["link", "copy", "another", "large"])
def test_two_checkpoints_with_one_content_are_sent_once_and_no_large_one(
    store, copied, kind, monkeypatch
):
    path = copied(f"checkpoints-{kind}")
    last, best = (path / "checkpoints" / f"{name}.safetensors" for name in ("last", "best"))
    best.unlink(missing_ok=True)
    if kind == "link":
        best.hardlink_to(last)
    else:
        best.write_bytes(last.read_bytes() + (b"1" if kind == "another" else b""))
    if kind == "large":
        monkeypatch.setattr(artifacts, "MAX_CHECKPOINT_BYTES", 10)

    follow.sync(path, store.address.uri)

    entry = only(store, path)
    there = {item.path for item in store.client.list_artifacts(entry.info.run_id, "checkpoints")}
    both = {"checkpoints/last.safetensors", "checkpoints/best.safetensors"}
    wanted = {"another": both, "large": set()}.get(kind, {"checkpoints/best.safetensors"})
    assert both & there == wanted
    assert ("not_sent.checkpoint.best" in entry.data.tags) == (kind == "large")


def test_deleted_experiment_is_an_error(store, copied):
    path = copied("gone")
    text = (path / "config.yaml").read_text().replace("experiment: null", "experiment: gone")
    (path / "config.yaml").write_text(text)
    follow.sync(path, store.address.uri)
    store.client.delete_experiment(store.client.get_experiment_by_name("gone").experiment_id)

    with pytest.raises(UserError, match=r"`gone`.*tracking.experiment"):
        follow.sync(path, store.address.uri)


def test_error_about_damaged_metrics_names_the_file_and_the_rest_is_sent(store, copied):
    path = copied("damaged")
    with (path / "metrics.csv").open("a") as file:
        file.write("4,test,personal,accuracy,much\n")

    with pytest.raises(DataError, match=re.escape(str(path / "metrics.csv"))):
        follow.sync(path, store.address.uri)
    assert only(store, path).info.status == "FINISHED"
    assert "accuracy" in only(store, path).data.metrics
