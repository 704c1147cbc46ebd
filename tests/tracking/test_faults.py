"""What MLflow does not take keeps nothing else back, and messages give the true reason."""

import json
import shutil
import sqlite3
import time
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from flbench.cli import app
from flbench.config.schema import TrackingConfig
from flbench.core.errors import UserError
from flbench.tracking import follow, mirror, send
from flbench.tracking import store as stores
from flbench.tracking.artifacts import File
from flbench.tracking.send import NotSentError, Sender, SentCounts
from flbench.tracking.tree import Node, Tree
from tests.installed import needs
from tests.support import run
from tests.tracking import study
from tests.tracking.conftest import copied
from tests.tracking.planned import planned_server
from tests.tracking.reading import artifacts, campaign, counts, only

pytestmark = [pytest.mark.mlflow, needs("mlflow")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, _ = run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg", "train.rounds=1")
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory, database):
    place = tmp_path_factory.mktemp("served")
    with planned_server(copied(database, place), place / "artifacts") as server:
        yield server


@pytest.fixture
def server(served):
    """The server, which answers everything after the test."""
    served.requests.clear()
    yield served
    served.plan = lambda method, path: None


@pytest.fixture
def quick(monkeypatch):
    """No pause between the attempts of `flbench sync`."""
    name = "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"
    monkeypatch.setitem(follow.SYNC_SETTINGS, name, "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")


def is_upload_of(name):
    return lambda method, path: method == "PUT" and path.endswith(f"/{name}")


def files_of(store, path):
    return artifacts(store, only(store, path))


@pytest.mark.slow
def test_refused_file_keeps_nothing_else_back_and_comes_later(folder, server, tmp_path, capsys):
    """A proxy that answers 413 to one file. The next run is sent too."""
    paths = [shutil.copytree(folder, tmp_path / name) for name in ("one", "two")]
    is_table, is_first = is_upload_of("per_class.csv"), [True]

    def plan(method, path):
        if is_table(method, path) and is_first:
            is_first.clear()
            return 413
        return None

    server.plan = plan
    code = app.main(["sync", *map(str, paths), "--uri", server.uri, "--json"])

    said, store = capsys.readouterr(), stores.open_store(server.uri)
    one, two = json.loads(said.out)
    assert code == 2
    assert "per_class.csv" in said.err
    assert "413" in said.err
    assert (only(store, paths[0]).info.status, two["error"]) == ("FINISHED", None)
    assert files_of(store, paths[1]) - files_of(store, paths[0]) == {"per_class.csv"}
    assert one["sent"] == {**two["sent"], "files": two["sent"]["files"] - 1}
    again, _ = follow.sync(paths[0], server.uri)
    assert vars(again) == {**vars(SentCounts()), "files": 1}
    assert counts(store, paths[0]) == counts(store, paths[1])
    methods = [method for method, _ in server.requests]
    state = server.requests.index(("POST", "/api/2.0/mlflow/runs/update"))
    assert methods.index("PUT") > state  # no file is sent before the state


@pytest.mark.slow
def test_refused_file_of_a_study_keeps_none_of_its_runs_back(folder, server, tmp_path):
    path = study.make(tmp_path, {"fedavg": folder}, cells=False)
    server.plan = lambda method, path: 403 if method == "PUT" else None

    with pytest.raises(NotSentError, match=r"(?s)study\.json.*403"):
        follow.sync(path, server.uri)

    found = campaign(stores.open_store(server.uri), path.name)
    assert {entry.data.tags["kind"] for entry in found.values()} == {"study", "method", "trial"}
    assert "RUNNING" not in {entry.info.status for entry in found.values()}
    server.plan = lambda method, path: None
    again, _ = follow.sync(path, server.uri)
    assert again.files
    assert not again.runs
    assert not follow.sync(path, server.uri)[0]


@pytest.mark.slow
def test_parameter_that_mlflow_refuses_keeps_no_state_back(folder, store, tmp_path):
    path = study.make(tmp_path, {"fedavg": folder}, cells=False)
    file = path / "trials" / "fedavg" / "001" / "trial.json"
    study.edit(file, params={"train.optimizer.lr": 1, "not#allowed": 1})

    with pytest.raises(UserError, match=r"fedavg 001 .*not#allowed"):
        follow.sync(path, store.address.uri)

    found = campaign(store, path.name)
    assert {entry.data.tags["kind"] for entry in found.values()} == {"study", "method", "trial"}
    assert "RUNNING" not in {entry.info.status for entry in found.values()}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_server_that_refuses_every_third_request_is_passed_in_one_sync(folder, server, tmp_path):
    paths = [shutil.copytree(folder, tmp_path / name) for name in ("hard", "easy")]
    number = count(1)
    server.plan = lambda method, path: 503 if next(number) % 3 == 0 else None

    follow.sync(paths[0], server.uri)

    refused = next(number) // 3
    server.plan = lambda method, path: None
    follow.sync(paths[1], server.uri)
    store = stores.open_store(server.uri)
    assert refused > 5
    assert counts(store, paths[0]) == counts(store, paths[1])
    assert not follow.sync(paths[0], server.uri)[0]


@pytest.mark.usefixtures("_forked")
@pytest.mark.slow
def test_mirror_tries_again_after_the_end_of_a_run(folder, server, tmp_path):
    """The database of the server is away for a second when the run ends."""
    path = shutil.copytree(folder, tmp_path / "late")
    begin = time.monotonic()
    server.plan = lambda method, path: 503 if time.monotonic() < begin + 1 else None

    said = mirror.Mirror().start(path, TrackingConfig(uri=server.uri)).finish(60)

    assert said == []
    assert "503" in (path / mirror.LOG).read_text()
    assert only(stores.open_store(server.uri), path).info.status == "FINISHED"


@pytest.mark.usefixtures("_forked")
@pytest.mark.slow
def test_mirror_outlives_a_refused_file_and_names_it(folder, server, tmp_path):
    path = shutil.copytree(folder, tmp_path / "partly")
    refused = is_upload_of("per_class.csv")
    server.plan = lambda method, path: 413 if refused(method, path) else None

    [said] = mirror.Mirror().start(path, TrackingConfig(uri=server.uri)).finish(60)

    for word in ("per_class.csv", "413", f"flbench sync {path}"):
        assert word in said
    store = stores.open_store(server.uri)
    assert only(store, path).info.status == "FINISHED"
    assert files_of(store, path) >= {"config.yaml", "checkpoints"}


class BotoLikeError(Exception):
    """Not in any list of errors, as those of boto."""


def refusing(calls, error, monkeypatch):
    """Return what sends four files to a file store that raises an error for each."""

    def log_artifact(run, file, folder):
        calls.append(file)
        raise error

    files = [File(name, Path(__file__), name) for name in "abcd"]
    nodes = [Node("key", "mine", "run", 0, None, "FINISHED", files=files)]
    monkeypatch.setattr(send, "tree", lambda *_: Tree(nodes, []))
    record = SimpleNamespace(
        info=SimpleNamespace(run_id="1", start_time=0, status="FINISHED", artifact_uri="/x"),
        data=SimpleNamespace(tags={"flbench.run": "key", "kind": "run"}, params={}, metrics={}),
    )
    store = SimpleNamespace(
        client=SimpleNamespace(log_artifact=log_artifact),
        address=stores.Address("http://there"),
        experiment=lambda name: "1",
        runs=lambda experiment, query: [record],
    )
    return Sender(store, Path("key"), "mine")


@pytest.mark.parametrize(
    ("said", "kind", "tried"),
    [
        ("An error occurred (AccessDenied)", "refused", 4),
        ('Could not connect to the endpoint URL: "http://s3/a"', "busy", 2),
        ("too many 500 error responses", "busy", 2),  # by a server, which answers after seconds
    ],
)
def test_file_store_that_is_away_is_tried_for_two_files_only(said, kind, tried, monkeypatch):
    calls = []
    sender = refusing(calls, BotoLikeError(said), monkeypatch)

    for attempt in (1, 2):
        with pytest.raises(NotSentError, match=" 4 ") as caught:
            sender.send(None)
        assert len(calls) == tried * attempt
    assert (caught.value.kind, caught.value.is_of_files) == (kind, True)


@pytest.mark.parametrize(
    ("location", "said"), [("s3://bucket/a", "boto3"), ("file:///proc/flbench", "/proc/flbench")]
)
@pytest.mark.slow
def test_file_store_that_cannot_be_used_keeps_no_metrics_back(
    location, said, folder, uri, tmp_path, capsys
):
    if location.startswith("s3") and find_spec("boto3"):
        pytest.skip("boto3 is installed")
    path = shutil.copytree(folder, tmp_path / "run")
    store = stores.open_store(uri)
    store.client.create_experiment("digits-dirichlet", location)

    code = app.main(["sync", str(path), "--uri", uri])

    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    entry = only(store, path)
    assert entry.info.status == "FINISHED"
    assert "accuracy" in entry.data.metrics


def test_long_values_are_sent_once(store, monkeypatch, tmp_path):
    """MLflow would cut them, with a warning, and they would differ from the whole ones."""
    from mlflow.utils import validation

    warned = []
    monkeypatch.setattr(validation._logger, "warning", warned.append)
    long = Node("long", "long", "run", 0, None, tags={"t": "y" * 9000}, params={"p": "x" * 7000})
    monkeypatch.setattr(send, "tree", lambda *_: Tree([long], []))
    first = Sender(store, tmp_path / "long", "long")
    first.send(None)
    second = Sender(store, tmp_path / "long", "long")
    second.send(None)

    assert first.sent.parameters == 1
    assert not second.sent
    entry = only(store, tmp_path / "long")
    assert len(entry.data.params["p"]) == send.MAX_PARAMETER
    assert len(entry.data.tags["t"]) == send.MAX_TAG
    assert "latest.p" not in entry.data.tags
    assert not warned


@pytest.mark.parametrize("uri", ["sqlite:///:memory:", "sqlite://", "./mlruns"])
def test_store_that_keeps_nothing_is_refused_before_the_training(uri, tmp_path, capsys):
    code = app.main(
        ["run", "tracking.mlflow=true", f"tracking.uri={uri}", f"output.dir={tmp_path}"]
    )

    assert code == 2
    assert uri in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_locked_database_is_named_without_a_traceback(folder, uri, monkeypatch, capsys):
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.1)
    file = stores.database_file(uri)
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")

        code = app.main(["sync", str(folder), "--uri", uri])

    said = capsys.readouterr().err
    assert code == 2
    assert "database is locked" in said
    assert "Traceback" not in said


def test_database_server_that_is_away_is_tried_once(monkeypatch):
    """MLflow would try for 100 seconds."""
    pytest.importorskip("sqlalchemy")
    begin = time.monotonic()

    with pytest.raises((OSError, ImportError)):
        stores.open_store("postgresql+psycopg2://127.0.0.1:1/x")

    assert time.monotonic() - begin < 20


@pytest.mark.slow
def test_folder_that_cannot_be_sent_does_not_stop_the_others(folder, uri, tmp_path, capsys):
    paths = [shutil.copytree(folder, tmp_path / name) for name in ("bad", "good")]
    (paths[0] / "config.yaml").write_text("seed: [")

    code = app.main(["sync", *map(str, paths), "--uri", uri])

    said = capsys.readouterr()
    assert code == 2
    assert str(paths[0] / "config.yaml") in said.err
    assert str(paths[1]) in said.out
    assert only(stores.open_store(uri), paths[1]).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "tracking: none"),
        ("config.yaml", "seed: 1"),
        ("partition.json", "{"),
        ("provenance.json", '{"started": "early"}'),
        ("summary.json", '{"last": {}}'),
        ("per_class.csv", ""),
        ("metrics.csv", "round,split,protocol,metric,value\n4,test,personal,accuracy,much\n"),
    ],
)
@pytest.mark.slow
def test_damaged_file_is_named(folder, tmp_path, capsys, name, text, uri):
    path = shutil.copytree(folder, tmp_path / "damaged")
    (path / name).write_text(text)

    code = app.main(["sync", str(path), "--uri", uri])

    said = capsys.readouterr().err
    assert code == 2
    assert str(path / name) in said
    assert "Traceback" not in said
