"""Which store, whether MLflow is there, and why a store was not reached."""

import subprocess
import sys
from pathlib import Path

import pytest

from flbench.tracking import mlflow_store
from tests.tracking.forked import CONTEXT

ROOT = Path(__file__).resolve().parents[2]
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


def test_a_folder_called_mlflow_is_not_mlflow(tmp_path):
    """An interpreter without installed packages, in a folder with `mlflow/`."""
    (tmp_path / "mlflow").mkdir()
    script = "import mlflow; from flbench.tracking import mlflow_store as s; print(s.installed())"

    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Max retries: [Errno 111] Connection refused", "connection refused"),
        ("Read timed out. (read timeout=2)", "no answer in time"),
        ("first line\nsecond line", "first line"),
    ],
)
def test_reason_is_short(said, reason):
    error = RuntimeError("API request failed")
    error.__cause__ = RuntimeError(said)

    alone = mlflow_store.reason(RuntimeError(said))

    assert alone == reason
    if "\n" not in said:
        assert mlflow_store.reason(error) == reason


@HERE
@pytest.mark.slow
def test_three_processes_may_be_the_first_at_once(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/new/flbench.db"
    mlflow_store.open_store(f"sqlite:///{tmp_path}/other.db")  # imports all before the forks

    def begin():
        mlflow_store.open_store(uri).experiment("e")

    processes = [CONTEXT.Process(target=begin) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = mlflow_store.open_store(uri).client.search_experiments(filter_string="name = 'e'")
    assert len(found) == 1
