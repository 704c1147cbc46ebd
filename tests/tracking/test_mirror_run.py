"""A run folder in MLflow: everything there, nothing twice."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from flbench.config.sources import leaves
from flbench.core.errors import DataError, UserError
from flbench.results import metrics_file
from flbench.results.metrics_file import Row
from flbench.tracking import follow, mlflow_names
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


def test_run_has_every_parameter_under_its_path(store, copied):
    path = copied("parameters")

    follow.sync(path, store.uri)

    found = only(store, path).data.params
    config = yaml.safe_load((path / "config.yaml").read_text())
    wanted = {key for key in leaves(config) if not key.startswith("tracking.")}
    assert set(found) == wanted
    assert found["train.rounds"] == "3"
    assert json.loads(found["partition.split"]) == [0.6, 0.2, 0.2]
    assert found["algorithm.name"] == "fedavg"


def test_run_has_the_figures_of_metrics_csv_with_ten_digits(store, copied):
    path = copied("figures")

    follow.sync(path, store.uri)

    rows = metrics_file.read(path / "metrics.csv")
    wanted = sorted(
        (mlflow_names.metric_name(row), row.round, float(f"{row.value:.9e}")) for row in rows
    )
    named = {name for name, _, _ in wanted}
    found = history(store, only(store, path))
    assert sorted(item for item in found if item[0] in named) == wanted


def test_no_number_has_more_than_ten_digits(store, copied, tmp_path):
    """MLflow's pages show all digits. Whole numbers, such as bytes, stay exact."""
    path = copied("digits")
    config = path / "config.yaml"
    config.write_text(re.sub(r"lr: [0-9.]+", "lr: 0.012345678901234567", config.read_text()))
    summary = json.loads((path / "summary.json").read_text())
    summary["communication"]["up_bytes"] = 123_456_789_012
    (path / "summary.json").write_text(json.dumps(summary))

    follow.sync(path, store.uri)

    entry = only(store, path)
    file = store.client.download_artifacts(entry.info.run_id, "clients.json", str(tmp_path))
    values = [value for _, _, value in history(store, entry)]
    values += [cell for row in json.loads(Path(file).read_text())["data"] for cell in row[1:]]
    assert len([value for value in values if value % 1]) > 20
    assert all(len(digits(value)) <= 10 for value in values if value % 1)
    assert entry.data.metrics["cost/up_bytes"] == 123_456_789_012
    assert entry.data.params["train.optimizer.lr"] == "0.0123456789"


def digits(value: float) -> str:
    """Return the significant digits of a number as Python writes it."""
    return repr(value).partition("e")[0].replace(".", "").lstrip("0")


@pytest.fixture(scope="module")
def other(store, folder, tmp_path_factory):
    """A run that was sent, and how much MLflow has of it."""
    path = shutil.copytree(folder, tmp_path_factory.mktemp("runs") / "x")
    follow.sync(path, store.uri)
    return path, counts(store, path)


@pytest.mark.parametrize(
    "name",
    ["it's", 'a"b', "x' OR '1'='1", "a\\", "a`b", "100%", "%27", "a\nb", "a\x1b[31mb", "Zoë 北京"],
)
def test_any_name_of_a_folder_finds_its_own_run_and_no_other(store, copied, other, name):
    path = copied(name)
    other, before = other

    first, _ = follow.sync(path, store.uri)
    second, _ = follow.sync(path, store.uri)

    [entry] = entries(store, "flbench.run", mlflow_names.identifier(name))
    assert first.runs == 1
    assert not second
    assert counts(store, other) == before
    assert "\x1b" not in entry.info.run_name + entry.data.tags["flbench.run"]


def test_folder_whose_name_is_not_text_is_sent(store, folder, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    shutil.copytree(folder, path)

    first, _ = follow.sync(path, store.uri)
    second, _ = follow.sync(path, store.uri)

    assert first.runs == 1
    assert not second


def test_summary_gives_figures_to_sort_by(store, copied):
    path = copied("sorted")
    summary = json.loads((path / "summary.json").read_text())

    follow.sync(path, store.uri)

    found = only(store, path).data.metrics
    exact = {
        "final/test/accuracy": summary["last"]["test"]["accuracy"],
        "best/validation/accuracy": summary["best"]["validation"]["accuracy"],
        "cost/up_bytes": summary["communication"]["up_bytes"],
        "cost/seconds/total": summary["seconds"]["total"],
    }
    assert {name: found[name] for name in exact} == pytest.approx(exact, rel=1e-9)


def test_files_arrive_as_they_are(store, copied, tmp_path):
    path = copied("files")

    follow.sync(path, store.uri)

    entry = only(store, path)
    there = {item.path for item in store.client.list_artifacts(entry.info.run_id)}
    assert there >= {"config.yaml", "summary.json", "report.html", "clients.csv", "confusion.csv"}
    for name in ("per_class.csv", "checkpoints/last.safetensors"):
        copy = store.client.download_artifacts(entry.info.run_id, name, str(tmp_path))
        assert (path / name).read_bytes() == Path(copy).read_bytes()
    picture = store.client.download_artifacts(entry.info.run_id, "partition.png", str(tmp_path))
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_table_of_classes_is_one_that_mlflow_shows(store, copied, tmp_path):
    path = copied("table")
    written = path / "per_class.csv"
    written.write_text(written.read_text().replace("last,1,1,", "last,1,01_1,"))

    follow.sync(path, store.uri)

    entry = only(store, path)
    file = store.client.download_artifacts(entry.info.run_id, "per_class.json", str(tmp_path))
    table = json.loads(Path(file).read_text())
    header, *lines = (path / "per_class.csv").read_text().splitlines()
    assert table["columns"] == header.split(",")
    assert len(table["data"]) == len(lines)
    assert ["last", 1, "01_1"] in [row[:3] for row in table["data"]]
    assert all(isinstance(figure, float | int) for row in table["data"] for figure in row[3:8])
    shown = json.loads(entry.data.tags["mlflow.loggedArtifacts"])
    assert {"path": "per_class.json", "type": "table"} in shown


def test_data_set_is_an_input_with_the_digest_of_its_content(store, copied):
    path = copied("data")
    about = json.loads((path / "partition.json").read_text())

    follow.sync(path, store.uri)

    entry = store.client.get_run(only(store, path).info.run_id)
    [found] = entry.inputs.dataset_inputs
    assert found.dataset.name == "digits"
    assert found.dataset.digest == about["data"][:32]
    assert entry.data.tags["flbench.data"] == about["data"]
    assert entry.data.tags["partition"] == about["hash"]


def test_second_sync_sends_nothing(store, copied):
    path = copied("twice")
    first, _ = follow.sync(path, store.uri)
    before = counts(store, path)

    second, _ = follow.sync(path, store.uri)

    assert first
    assert first.metrics
    assert not second
    assert counts(store, path) == before


def test_metrics_that_are_sent_again_change_nothing(store, copied):
    path = copied("again")
    follow.sync(path, store.uri)
    before = counts(store, path)
    entry = only(store, path)
    store.client.set_tag(entry.info.run_id, "mlflow.flbench.sent", "7 0000")

    again, _ = follow.sync(path, store.uri)

    assert again.metrics > 0
    assert counts(store, path) == before


def test_figures_of_a_growing_file_are_sent_once_and_a_half_line_waits(store, copied):
    path = copied("growing")
    (path / "summary.json").unlink()
    whole = (path / "metrics.csv").read_text()
    cut = whole.index("\n", whole.index(",validation,")) + 5  # within a line
    (path / "metrics.csv").write_text(whole[:cut])
    first, _ = follow.sync(path, store.uri)
    (path / "metrics.csv").write_text(whole)

    second, _ = follow.sync(path, store.uri)

    lines = whole.count("\n") - 1
    assert first.metrics == whole[:cut].count("\n") - 1
    assert second.metrics == lines - first.metrics


def test_rewound_figures_are_sent_again(store, copied):
    path = copied("rewound")
    (path / "summary.json").unlink()
    rows = metrics_file.read(path / "metrics.csv")
    other = [*rows[:-1], Row(rows[-1].round, "server", "", "another", 1.0)]
    (path / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(other))
    follow.sync(path, store.uri)
    (path / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    follow.sync(path, store.uri)

    found = {(name, step) for name, step, _ in history(store, only(store, path))}
    assert {(mlflow_names.metric_name(row), row.round) for row in rows} <= found


def test_equal_figures_of_a_set_up_stay_apart(store, copied):
    path = copied("setup")
    rows = [Row(0, "setup", "", "up_bytes", 5.0), Row(0, "setup", "", "up_bytes", 5.0)]
    (path / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    follow.sync(path, store.uri)

    found = [item for item in history(store, only(store, path)) if item[0] == "setup/up_bytes"]
    assert found == [("setup/up_bytes", 0, 5.0)] * 2


def test_run_is_found_again_from_within_its_folder(store, copied, monkeypatch):
    path = copied("within")
    follow.sync(path, store.uri)
    monkeypatch.chdir(path)

    again, _ = follow.sync(Path(), store.uri)

    assert not again
    assert entries(store, "flbench.run", "") == []


def test_interrupted_run_is_killed_and_its_resumption_continues_the_same_entry(store, tmp_path):
    from flbench.config.sources import Layer
    from flbench.experiment import lifecycle

    path = interrupted_run(tmp_path, "algorithm=fedavg")
    follow.sync(path, store.uri)
    killed = only(store, path)

    lifecycle.resume(path, Layer({}))
    follow.sync(path, store.uri)

    resumed = only(store, path)
    assert killed.info.status == "KILLED"
    assert resumed.info.run_id == killed.info.run_id
    assert resumed.info.status == "FINISHED"
    wanted = json.loads((path / "summary.json").read_text())["last"]["test"]["accuracy"]
    assert resumed.data.metrics["test/accuracy"] == mlflow_names.rounded(wanted)


def test_run_that_another_process_continues_is_running(store, copied):
    path = copied("running")
    (path / "summary.json").unlink()
    with FileLock(path / ".lock"):
        follow.sync(path, store.uri)
        running = only(store, path).info.status

    follow.sync(path, store.uri)

    assert running == "RUNNING"
    assert only(store, path).info.status == "KILLED"


@pytest.mark.parametrize("kind", ["link", "copy", "another"])
def test_two_checkpoints_with_one_content_are_sent_once(store, copied, kind):
    path = copied(f"checkpoints-{kind}")
    folder = path / "checkpoints"
    last, best = folder / "last.safetensors", folder / "best.safetensors"
    best.unlink(missing_ok=True)
    if kind == "link":
        best.hardlink_to(last)
    else:
        best.write_bytes(last.read_bytes() + (b"1" if kind == "another" else b""))

    follow.sync(path, store.uri)

    entry = only(store, path)
    there = {item.path for item in store.client.list_artifacts(entry.info.run_id, "checkpoints")}
    both = {"checkpoints/last.safetensors", "checkpoints/best.safetensors"}
    assert both & there == (both if kind == "another" else {"checkpoints/last.safetensors"})
    assert ("checkpoint.best" in entry.data.tags) == (kind != "another")


def test_too_large_a_checkpoint_is_noted(store, copied, monkeypatch):
    path = copied("large")
    monkeypatch.setattr("flbench.tracking.mlflow_files.MAX_CHECKPOINT_BYTES", 10)

    follow.sync(path, store.uri)

    entry = only(store, path)
    there = {item.path for item in store.client.list_artifacts(entry.info.run_id)}
    assert "checkpoints" not in there
    assert entry.data.tags["checkpoint.last"].startswith("not sent")


def test_deleted_experiment_is_an_error(store, copied):
    path = copied("gone")
    text = (path / "config.yaml").read_text().replace("experiment: null", "experiment: gone")
    (path / "config.yaml").write_text(text)
    follow.sync(path, store.uri)
    store.client.delete_experiment(store.client.get_experiment_by_name("gone").experiment_id)

    with pytest.raises(UserError, match=r"`gone` was deleted.*tracking.experiment"):
        follow.sync(path, store.uri)


def test_error_about_damaged_metrics_names_the_line(store, copied):
    path = copied("damaged")
    with (path / "metrics.csv").open("a") as file:
        file.write("4,test,personal,accuracy,much\n")
    line = (path / "metrics.csv").read_text().count("\n")

    with pytest.raises(DataError, match=f"damaged in line {line}"):
        follow.sync(path, store.uri)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(1, "validation", "personal", "accuracy", 0.5), "validation/accuracy"),
        (Row(1, "test", "personal@local", "rare_recall", 0.5), "test/personal-local/rare_recall"),
        (Row(1, "test", "head", "accuracy", 0.5), "test/head/accuracy"),
        (Row(1, "train", "", "loss", 0.5), "train/loss"),
        (Row(1, "server", "", "a$b", 0.5), "server/a-b"),
    ],
)
def test_names_of_figures(row, name):
    assert mlflow_names.metric_name(row) == name
