"""Stores for the tests of MLflow. To create a database takes MLflow more than a second."""

import sqlite3
from contextlib import closing

import pytest

from flbench.tracking import mirror
from flbench.tracking import store as stores
from flbench.tracking.store import Store
from tests.tracking import forked


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """The file of an empty store. Tests copy it."""
    pytest.importorskip("mlflow")
    file = tmp_path_factory.mktemp("mlflow") / "flbench.db"
    stores.open_store(f"sqlite:///{file}")
    return file


def copied(database, folder) -> str:
    """Copy a database, of which SQLite keeps a part in other files; return the address."""
    folder.mkdir(exist_ok=True)
    file = folder / "flbench.db"
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def store(tmp_path_factory, database) -> Store:
    """One store for each file of tests."""
    return stores.open_store(copied(database, tmp_path_factory.mktemp("mlflow")))


@pytest.fixture
def uri(tmp_path, database) -> str:
    """The address of an empty store."""
    return copied(database, tmp_path / "m")


@pytest.fixture
def _forked(monkeypatch):
    """Make the mirrors of the test forks of the test process."""
    monkeypatch.setattr(mirror, "subprocess", forked)


@pytest.fixture
def _patient(monkeypatch):
    """Wait for mirrors as long as a busy machine needs; a test reads the store afterwards."""
    monkeypatch.setattr(mirror, "EXIT_SECONDS", 120.0)
