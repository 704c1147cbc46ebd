"""Which store, whether MLflow is there, and why a store was not reached."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import filelock
import pytest
from filelock import FileLock

from flbench.core.errors import ConfigError, UserError
from flbench.core.text import is_of_this_machine
from flbench.tracking import store as stores
from flbench.tracking.store import Address
from tests.tracking.forked import CONTEXT

ROOT = Path(__file__).resolve().parents[2]
HERE = pytest.mark.mlflow


def test_address_is_the_option_then_the_environment_then_a_local_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = stores.address(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://a")

    assert local == Address(f"sqlite:///{tmp_path}/mlflow/flbench.db", "nobody")
    assert stores.database_file(local.uri) == tmp_path / "mlflow" / "flbench.db"
    assert stores.address(None) == Address("http://a")
    assert stores.address("http://b", "file") == Address("http://b", "file")
    assert stores.artifact_location(local.uri) == (tmp_path / "mlflow" / "artifacts").as_uri()
    assert stores.artifact_location("http://127.0.0.1:5000") is None


def test_a_folder_called_mlflow_is_not_mlflow(tmp_path):
    """An interpreter without installed packages, in a folder with `mlflow/`."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "filelock").symlink_to(Path(filelock.__file__).parent)  # which flbench imports
    script = "import mlflow; from flbench.tracking import store as s; print(s.installed())"

    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("uri", ["sqlite:///{}/flbench.db", "postgresql+psycopg2://ann@host/a"])
def test_lock_of_a_store_follows_no_link(uri, tmp_path, monkeypatch):
    """And it is not in the folder for temporary files, where other users know its name."""
    private, shared, cache = (tmp_path / name for name in ("private", "shared", "cache"))
    private.write_text("secret")
    shared.mkdir()
    (cache / "flbench").mkdir(parents=True)
    address = uri.format(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    name = sha256(address.encode()).hexdigest()[:16]
    planted = shared / f"flbench-{os.getuid()}-{name}.lock"
    for link in (planted, cache / "flbench" / f"{name}.lock", tmp_path / "flbench.db.lock"):
        link.symlink_to(private)

    with suppress(OSError), stores._exclusive(address):
        pass
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with stores._exclusive("postgresql://ann@host/b"):
        pass

    assert private.read_text() == "secret"
    assert list(shared.iterdir()) == [planted]


def test_check_of_a_database_waits_for_the_process_that_makes_its_tables(tmp_path, monkeypatch):
    """The runs of one command have a mirror each, and the first one makes the database."""
    file = tmp_path / "flbench.db"
    uri = f"sqlite:///{file}"
    waited = []

    def make(lock):
        waited.append(lock.lock_file)
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE experiments (name)")

    file.touch()
    with pytest.raises(UserError, match=str(file)):
        stores.open_store(Address(uri, "nobody"))
    file.with_name("flbench.db.lock").touch()
    monkeypatch.setattr(FileLock, "acquire", make)  # returns once the other process is ready
    stores._check_is_store(Address(uri, "nobody"))
    assert len(waited) == 1


@HERE
@pytest.mark.slow
def test_three_processes_may_be_the_first_at_once(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/new/flbench.db"
    stores.open_store(f"sqlite:///{tmp_path}/other.db")  # imports all before the forks

    def begin():
        stores.open_store(Address(uri, "nobody")).experiment("e")

    processes = [CONTEXT.Process(target=begin) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = stores.open_store(uri).client.search_experiments(filter_string="name = 'e'")
    assert len(found) == 1


@HERE
@pytest.mark.slow
def test_nothing_is_written_beside_the_working_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    folder = tmp_path / "a+b&c;d Zoë"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert is_of_this_machine(stores.address(None, "folder").uri)

    store = stores.open_store(stores.address(None))
    run = store.client.create_run(store.experiment("e"))
    store.client.log_text(run.info.run_id, "content", "file.txt")

    with closing(sqlite3.connect(folder / "mlflow" / "flbench.db")) as database:
        assert database.execute("SELECT run_uuid FROM runs").fetchall() == [(run.info.run_id,)]
    [file] = folder.glob("mlflow/artifacts/*/artifacts/file.txt")
    assert file.read_text() == "content"
    assert list(tmp_path.iterdir()) == [folder]
    store.address.check_artifacts(run.info.artifact_uri)  # it is below the folder of the database


@pytest.mark.parametrize("name", ["a?b=1", "100%41", "a#b"])
def test_a_working_folder_whose_name_an_address_cannot_have_is_refused(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)

    with pytest.raises(ConfigError, match="--uri ADDRESS"):
        stores.address(None)
