"""A comparison in MLflow: comparison, methods and cells as nested runs."""

import json
import shutil
import socket
import time
from pathlib import Path

import pandas as pd
import pytest

import flbench as fl
from flbench.analysis import report
from flbench.cli import app
from flbench.core.errors import DataError
from flbench.tracking import follow, tree
from flbench.tracking import store as stores
from tests.installed import needs
from tests.support import SMALL
from tests.tracking.reading import artifacts, campaign, parents

pytestmark = [pytest.mark.mlflow, pytest.mark.slow, needs("mlflow")]

ONE = [item for item in SMALL if not item.startswith(("engine.", "tracking.", "train.rounds"))]
WORDS = ["local", "fedavg", "--seeds", "2", "--jobs", "1", *ONE, "train.rounds=2"]
METHODS = ("local", "fedavg")
SECRET = "s3cret-w0rd"


@pytest.fixture(scope="module", autouse=True)
def _without_pictures():
    """Write the report without its pictures, which take seconds; one file stands for them."""

    def write(folder, analysis):
        for name in ("tables", "pictures"):
            (folder / name).mkdir(exist_ok=True)
        texts = {f"tables/{name}.csv": report.csv_of(analysis, name) for name in report.FRAMES}
        texts |= {"report.json": report.json_of(analysis), "report.md": "", "report.html": ""}
        for name, text in (texts | {"pictures/leaders.svg": "<svg/>"}).items():
            (folder / name).write_text(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flbench.api.reporting.written.write", write)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished comparison, of which tests send copies."""
    out = tmp_path_factory.mktemp("comparisons")
    assert app.main(["compare", *WORDS, "--out", str(out)]) == 0
    (path,) = out.iterdir()
    return path


@pytest.fixture
def copied(trained, tmp_path, request) -> Path:
    """A copy with an id of its own, so that tests do not meet in the store."""
    path = tmp_path / "c" / request.node.name
    shutil.copytree(trained, path)
    about = json.loads((path / "comparison.json").read_text())
    (path / "comparison.json").write_text(json.dumps({**about, "id": path.name}))
    return path


@pytest.fixture(scope="module")
def whole(store, trained):
    """The comparison, sent; tests only look at it."""
    follow.sync(trained, store.address.uri)
    return runs_of(store, trained)


def runs_of(store, path):
    return campaign(store, json.loads((path / "comparison.json").read_text())["id"])


def cell_names(method):
    return [f"cells/{method}-digits-seed{seed}" for seed in (0, 1)]


def summary(path, key):
    return json.loads((path / key / "summary.json").read_text())


def test_cells_are_below_methods_and_methods_below_the_comparison(whole):
    wanted = {"": None, "methods/local": "", "methods/fedavg": ""}
    for method in METHODS:
        wanted |= dict.fromkeys(cell_names(method), f"methods/{method}")

    assert parents(whole) == wanted
    assert {run.info.status for run in whole.values()} == {"FINISHED"}
    colours = {whole[f"methods/{one}"].data.tags["mlflow.runColor"] for one in METHODS}
    assert len(colours) == len(METHODS)  # without the tag MLflow draws them, equal ones too


def test_comparison_has_the_figures_of_its_leaderboard(store, copied):
    """Those of the metric that ranks the methods, and of each other one that the report has."""
    runs = [str(path) for path in (copied / "cells").iterdir()]
    report = fl.report(runs, metric="macro_f1,balanced_accuracy,bytes")
    report.write(copied)
    follow.sync(copied, store.address.uri)

    found = runs_of(store, copied)[""]

    board = report.leaderboard.set_index("method")
    columns = {"macro_f1": "mean", "balanced_accuracy": "balanced_accuracy"}
    assert found.data.metrics == {
        f"{name}/{method}": pytest.approx(board.loc[method, column])
        for name, column in columns.items()
        for method in METHODS
    }
    assert found.data.tags["metric"] == "macro_f1"
    for method in METHODS:
        rare = summary(copied, cell_names(method)[0])["best"]["test"].get("rare_recall")
        assert (rare is not None) == (f"rare_recall/{method}" in found.data.metrics)


def test_classes_without_test_samples_are_left_out_as_in_the_report(store, copied):
    absent = {("fedavg", 1): (2,), ("local", 0): (2, 5), ("local", 1): (5,)}
    for (method, seed), classes in absent.items():
        file = copied / cell_names(method)[seed] / "per_class.csv"
        rows = pd.read_csv(file)
        scores = ["test_support", "precision", "recall", "f1"]
        rows.loc[rows["class"].isin(classes), scores] = 0
        rows.to_csv(file, index=False)
    table = fl.report([str(path) for path in (copied / "cells").iterdir()]).classes

    follow.sync(copied, store.address.uri)

    found = runs_of(store, copied)
    nodes = {node.name: node for node in tree.tree(copied, None).nodes if node.kind == "method"}
    for row in table.itertuples():
        points = {point.name: point.value for point in nodes[row.method].points}
        for metric in ("recall", "f1"):
            name, wanted = f"{metric}/{row.name}", getattr(row, metric)
            sent = found[f"methods/{row.method}"].data.metrics
            assert (name in points) == (name in sent) == (row.n > 0)
            if row.n:
                assert points[name] == pytest.approx(wanted, rel=0, abs=1e-12)
                assert sent[name] == pytest.approx(wanted, rel=1e-9)
            for seed, key in enumerate(cell_names(row.method)):
                has_none = int(row.name) in absent.get((row.method, seed), ())
                assert (name not in found[key].data.metrics) == has_none
    assert set(table["n"]) == {0, 1, 2}


def test_comparison_has_report_tables_and_design(store, whole, trained):
    root, name = whole[""], "cells/local-digits-seed1"

    assert artifacts(store, root) >= {
        *("report.html", "report.md", "report.json", "comparison.json"),
    }
    assert artifacts(store, root, "tables") == {f"tables/{one}.csv" for one in report.FRAMES}
    assert artifacts(store, root, "pictures") == {"pictures/leaders.svg"}
    assert (root.data.params["seeds"], root.data.params["train.rounds"]) == ("2", "2")
    answer = json.loads((trained / "report.json").read_text())["answer"]
    assert root.data.tags["mlflow.note.content"] == " ".join(answer)
    assert artifacts(store, whole[name]) >= {"per_class.csv", "clients.csv", "config.yaml"}


def test_tuned_methods_beside_others_have_the_names_of_the_report(store, copied):
    file = copied / "comparison.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "tuned": "study", "untuned": ["local"]}))

    follow.sync(copied, store.address.uri)

    names = {one.data.tags["method"] for key, one in runs_of(store, copied).items() if key}
    assert names == set(fl.report(copied).leaderboard["method"]) == {"local", "fedavg tuned"}
    file.write_text(json.dumps({**about, "tuned": "study", "untuned": 5}))
    with pytest.raises(DataError, match=r"comparison\.json"):
        follow.sync(copied, store.address.uri)


def test_nothing_is_sent_twice_neither_as_a_whole_nor_by_cells(store, whole, trained, capsys):
    cells = map(str, sorted((trained / "cells").iterdir()))

    assert app.main(["sync", str(trained), *cells, "--uri", store.address.uri, "--json"]) == 0

    sent = [entry["sent"] for entry in json.loads(capsys.readouterr().out)]
    assert len(sent) == 5
    assert not any(any(counts.values()) for counts in sent)


def test_cells_of_equal_names_are_sent_below_their_own_comparison(store, whole, copied):
    sent, _ = follow.sync(copied / "cells" / "local-digits-seed0", store.address.uri)

    own = runs_of(store, copied)
    assert sent.runs == len(own) == 7
    assert parents(own) == parents(whole)
    ids = {run.info.run_id for run in own.values()}
    assert not ids & {run.info.run_id for run in whole.values()}


def test_failed_or_interrupted_comparison_continues_the_same_runs(store, copied):
    cut, reason = copied / "cells" / "fedavg-digits-seed1" / "summary.json", "loss is not finite"
    kept = cut.read_bytes()
    cut.unlink()
    follow.sync(copied, store.address.uri)
    before = runs_of(store, copied)
    (copied / "failures.json").write_text(json.dumps({"fedavg-digits-seed1": reason}))
    follow.sync(copied, store.address.uri)
    failed = runs_of(store, copied)
    (copied / "failures.json").unlink()
    cut.write_bytes(kept)

    sent, _ = follow.sync(copied, store.address.uri)

    after = runs_of(store, copied)
    above = ("cells/fedavg-digits-seed1", "methods/fedavg", "")
    for runs, state in ((before, "KILLED"), (failed, "FAILED"), (after, "FINISHED")):
        assert [runs[key].info.status for key in above] == [state] * 3
        assert runs["methods/local"].info.status == "FINISHED"
    assert failed[above[0]].data.tags["reason"] == reason
    assert not before["methods/fedavg"].data.metrics
    assert sent.runs == 0
    ids = {key: run.info.run_id for key, run in before.items()}
    assert {key: run.info.run_id for key, run in after.items()} == ids
    values = [summary(copied, key)["best"]["test"]["accuracy"] for key in cell_names("fedavg")]
    found = after["methods/fedavg"].data.metrics["accuracy"]
    assert found == pytest.approx(sum(values) / 2)


@pytest.mark.usefixtures("_forked", "_patient")
def test_comparison_is_sent_while_it_is_trained_and_additions_join_it(tmp_path, uri):
    out = tmp_path / "out"
    tracking = ["tracking.mlflow=true", f"tracking.uri={uri}", "tracking.experiment=mine"]
    words = ["local", "--seeds", "1", "--jobs", "1", *ONE, "train.rounds=1", *tracking]
    assert app.main(["compare", *words, "--out", str(out)]) == 0
    (path,) = out.iterdir()
    store = stores.open_store(uri)
    before = runs_of(store, path)

    found = fl.resume(path, methods=["fedavg"], jobs=1, progress=False)

    assert set(found.cells["state"]) == {"finished"}
    after = runs_of(store, path)
    assert {run.info.status for run in after.values()} == {"FINISHED"}
    assert len(before) == 3
    assert len(after) == 5
    for key, run in before.items():
        assert after[key].info.run_id == run.info.run_id
    assert store.client.get_experiment(after[""].info.experiment_id).name == "mine"
    assert not follow.sync(path, None)[0]  # to where its configuration says


@pytest.mark.usefixtures("_forked", "_patient")
def test_comparison_that_began_without_mlflow_is_sent_when_it_is_resumed(copied, uri):
    words = ["tracking.mlflow=true", f"tracking.uri={uri}"]
    assert app.main(["compare", "--resume", str(copied), "--jobs", "1", *words]) == 0
    store = stores.open_store(uri)
    before = runs_of(store, copied)

    fl.resume(copied, seeds=3, jobs=1, progress=False)  # keeps it, as all other keys

    after = runs_of(store, copied)
    assert len(before) == 7
    assert len(after) == 9
    assert {run.info.status for run in after.values()} == {"FINISHED"}


@pytest.mark.usefixtures("_forked")
def test_server_that_never_answers_costs_a_sentence_and_no_secret_is_written(tmp_path, capsys):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        host = f"127.0.0.1:{server.getsockname()[1]}"
        tracking = ["tracking.mlflow=true", f"tracking.uri=http://ann:{SECRET}@{host}"]
        words = ["local", "--seeds", "1", "--jobs", "1", *ONE, "train.rounds=1", *tracking]
        begin = time.monotonic()
        code = app.main(["compare", *words, "--out", str(tmp_path)])
        seconds = time.monotonic() - begin

    said = capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert code == 0
    assert seconds < 60
    for word in (f"http://***@{host}", "timed out", f"flbench sync {path}"):
        assert word in said
    files = [file for file in path.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
