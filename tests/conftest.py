import os

# Threads of one process that wait for each other must not keep a core from the other test
# processes. OpenMP reads this once, when torch is imported; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from tests.support import REAL_DATA, run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `auto`, one test process more than there are cores; with `logical`, as many as cores.

    Many of the slow tests wait for processes that they started. `make quick` has none of them.
    """
    cores = os.cpu_count() or 1
    return cores if config.option.numprocesses == "logical" else cores + 1


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    """Run every test with one thread and an empty cache folder."""
    torch.set_num_threads(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a finished run. Tests must copy it before they write to it."""
    return run(tmp_path_factory.mktemp("finished"))[0]


@pytest.fixture(autouse=True)
def _no_mirror(request, monkeypatch):
    """Hide MLflow from all tests that are not marked `mlflow`.

    This affects this process alone. Tests that start other processes set `tracking.mlflow=false`,
    as SMALL does.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if request.node.get_closest_marker("mlflow") is None:
        monkeypatch.setattr("flbench.tracking.mlflow_store.installed", lambda: False)


def pytest_collection_modifyitems(items):
    # The longest tests have a time limit of their own. They start first, so that no test process
    # waits for them at the end.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if "real_data" in item.keywords and not REAL_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"{REAL_DATA} is not there"))


os.environ.setdefault("COLUMNS", "120")
