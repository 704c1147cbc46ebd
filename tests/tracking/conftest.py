"""A store for the tests of MLflow: one database for each file of tests."""

import pytest

from flbench.tracking import mlflow_store
from flbench.tracking.mlflow_store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    return mlflow_store.open_store(f"sqlite:///{folder / 'flbench.db'}")
