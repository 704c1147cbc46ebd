import ctypes
import gc
import logging
import os
import sys
import warnings
from collections import Counter
from datetime import date
from functools import cache
from itertools import count
from pathlib import Path
from zlib import crc32

# Threads of one process that wait for each other must not keep a core from the other test
# processes. OpenMP reads this once, when torch is imported; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray gives its workers a niceness of 15. Beside busy test processes such a worker gets a few per
# cent of a core, and its start may take minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Runs of tests start no worker processes; tests of workers unset it.
os.environ.setdefault("FLBENCH_WORKER", "1")
# The date draws methods of the contract, once for all test processes.
os.environ.setdefault("FLBENCH_CONTRACT_SEED", f"{date.today():%Y%m%d}")

import pytest

# Processes that tests start run `starts/sitecustomize.py` at first: they search for garbage as
# seldom as this process does.
STARTS = str(Path(__file__).parent / "starts")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTS, os.environ.get("PYTHONPATH")]))
gc.set_threshold(200_000, 10, 10)

# pyproject.toml switches pytest's capture of log records off, which takes most of a millisecond for
# each test. A handler must be there: without any, Python prints records to standard error.
logging.getLogger().addHandler(logging.NullHandler())

# This file imports neither torch nor flbench at its beginning: the process that only hands out the
# tests to others reads it too.


def pytest_collectstart():
    """Import Lightning as flbench does, without transformers, before a test file imports it."""
    import flbench.core.lightning  # noqa: F401


def pytest_terminal_summary(terminalreporter):
    if any("test_contract" in one.nodeid for one in terminalreporter.getreports("failed")):
        seed = os.environ["FLBENCH_CONTRACT_SEED"]
        terminalreporter.write_line(f"The methods were drawn by FLBENCH_CONTRACT_SEED={seed}.")


@pytest.fixture(scope="session")
def _caches(tmp_path_factory):
    """Paths of cache folders, which are not made: most tests have no use for them."""
    folder = tmp_path_factory.mktemp("caches")
    return (str(folder / str(number)) for number in count())


@pytest.fixture(autouse=True)
def _one_thread(_caches, monkeypatch):
    """Run every test with one thread and an empty cache folder."""
    import torch

    torch.set_num_threads(1)
    monkeypatch.setenv("XDG_CACHE_HOME", next(_caches))


@pytest.fixture(autouse=True)
def _registered_methods():
    """Later tests do not see the methods that a test has registered."""
    from flbench.core.registry import ALGORITHMS

    before = set(ALGORITHMS)
    yield
    for name in set(ALGORITHMS) - before:
        # The methods of flbench register when they are imported, which happens once.
        if not ALGORITHMS[name].__module__.startswith("flbench."):
            del ALGORITHMS[name]


@pytest.fixture(autouse=True, scope="session")
def _state_folder(tmp_path_factory):
    """Keep the records of files that name code in a folder of this process's tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _entry_points_are_read_once():
    """Read the installed packages once per process, and not for each Fabric that a test creates."""
    from lightning.fabric.utilities import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


@pytest.fixture(autouse=True, scope="session")
def _provenance_is_found_once():
    """Ask Git for the revision, and packages for their versions, once per process."""
    from flbench.experiment import provenance

    with pytest.MonkeyPatch.context() as patch:
        for name in ("git_revision", "version"):
            patch.setattr(provenance, name, cache(getattr(provenance, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_test_waits_for_the_disk():
    """Tests kill processes, and no machine: what is written is there without `fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _tests_are_read_once():
    """Find the imports of a module of the tests once per process: they are 400 files."""
    from flbench.core import source_hash

    plain = source_hash._imports
    once = cache(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            source_hash,
            "_imports",
            lambda module: (once if module.startswith("tests.") else plain)(module),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_pictures_in_pages():
    """Leave the pictures out of pages and reports: one takes longer than most trainings here.

    All else of a page is computed. Tests of the pictures use
    `support.pictures_in_pages`.
    """
    from matplotlib.figure import Figure

    from flbench.reports.shown import Drawn
    from tests.support import DRAWING

    of_run = Drawn("curves", "Curves", "", Figure())
    stubs = (lambda *_: b"", lambda *_: iter(()), lambda *_: iter(()), lambda *_: of_run)
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), stub in zip(DRAWING, stubs, strict=True):
            patch.setattr(owner, name, stub)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_permutations():
    """Fit few forests to permuted scores for a page of a study: each takes a tenth of a second."""
    from flbench.tuning import importance

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importance, "PERMUTATIONS", 3)
        yield


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a finished run. Tests must copy it before they write to it."""
    from tests.support import run

    return run(tmp_path_factory.mktemp("finished"))[0]


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks of a module: it imports PyTorch once."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.context.destroy(linger=0)


@pytest.fixture(autouse=True)
def _no_mirror(request, monkeypatch):
    """Hide MLflow from all tests that are not marked `mlflow`.

    This affects this process alone. Tests that start other processes set `tracking.mlflow=false`,
    as SMALL does.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if request.node.get_closest_marker("mlflow") is None:
        monkeypatch.setattr("flbench.tracking.store.installed", lambda: False)


def _mark_all_but_one_as_full(items):
    """Apply `one_of`: a test marked `one_of("policy")` runs with one value of that parameter.

    The value follows from the test's name, and goes on by one with each combination of the other
    parameters, so that all values occur. With the other values the test is `full`.
    """
    groups = {}
    for item in items:
        if mark := item.get_closest_marker("one_of"):
            function = item.nodeid.partition("[")[0]
            params = item.callspec.params.items()
            others = tuple(repr(value) for name, value in params if name not in mark.args)
            groups.setdefault((function, others), []).append(item)
    turns = Counter()
    for (function, _), members in groups.items():
        kept = (crc32(function.encode()) + turns[function]) % len(members)
        turns[function] += 1
        for item in members[:kept] + members[kept + 1 :]:
            item.add_marker(pytest.mark.full)


def is_a_use(item):
    return Path(__file__).parent / "uses" in item.path.parents


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    import torch

    from tests.support import REAL_DATA

    _mark_all_but_one_as_full(items)
    # The longest tests have a time limit of their own. They start first, so that no test process
    # waits for them at the end, and so does what users do.
    items.sort(key=lambda item: not (item.get_closest_marker("timeout") or is_a_use(item)))
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("processes"):  # Python may close one of Ray in a later test
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if item.get_closest_marker("real_data") and not REAL_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"{REAL_DATA} is not there"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """After each file, give freed memory back, which runs keep for their next steps.

    See `engine/memory.py`. A test process would grow to 2.5 GB, of which it uses less than one.
    Ray leaves files and sockets to the search for garbage, whose warnings would fail another test.
    What is left has been imported meanwhile, and no later search visits it.
    """
    if nextitem is None or nextitem.path != item.path:
        with warnings.catch_warnings():
            if "ray" in sys.modules:
                warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        gc.freeze()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)


def pytest_collection_finish():
    """Leave what the tests and the packages consist of out of every search for garbage."""
    gc.collect()
    gc.freeze()


os.environ.setdefault("COLUMNS", "120")
