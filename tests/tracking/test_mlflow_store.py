"""Which store, whether MLflow is there, and why a store was not reached."""

import sqlite3
from contextlib import closing

import pytest

from flbench.tracking import mlflow_store
from tests.tracking.forked import CONTEXT

HERE = pytest.mark.mlflow


def test_address_is_the_option_then_the_environment_then_a_local_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = mlflow_store.address(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://a")

    assert local == f"sqlite:///{tmp_path}/mlflow/flbench.db"
    assert mlflow_store.database_file(local) == tmp_path / "mlflow" / "flbench.db"
    assert mlflow_store.address(None) == "http://a"
    assert mlflow_store.address("http://b") == "http://b"


def test_artifacts_lie_beside_a_database_and_where_a_server_says(tmp_path):
    local = mlflow_store.artifact_location(f"sqlite:///{tmp_path}/x.db")

    assert local == (tmp_path / "artifacts").as_uri()
    assert mlflow_store.artifact_location("http://127.0.0.1:5000") is None


@HERE
@pytest.mark.slow
def test_three_processes_may_be_the_first_at_once(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/new/flbench.db"
    mlflow_store.open_store(f"sqlite:///{tmp_path}/other.db")  # imports all before the forks

    def begin():
        mlflow_store.open_store(uri, "nobody").experiment("e")

    processes = [CONTEXT.Process(target=begin) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = mlflow_store.open_store(uri).client.search_experiments(filter_string="name = 'e'")
    assert len(found) == 1


@HERE
@pytest.mark.slow
def test_nothing_is_written_beside_a_working_folder_with_any_name(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    folder = tmp_path / "a?b=1 100%41#c"
    folder.mkdir()
    monkeypatch.chdir(folder)

    store = mlflow_store.open_store(mlflow_store.address(None), "nobody")
    run = store.client.create_run(store.experiment("e"))
    store.client.log_text(run.info.run_id, "content", "file.txt")

    with closing(sqlite3.connect(folder / "mlflow" / "flbench.db")) as database:
        assert database.execute("SELECT run_uuid FROM runs").fetchall() == [(run.info.run_id,)]
    [file] = folder.glob("mlflow/artifacts/*/artifacts/file.txt")
    assert file.read_text() == "content"
    assert list(tmp_path.iterdir()) == [folder]
    store.check_artifacts(run.info.artifact_uri)  # it is below the folder of the database
