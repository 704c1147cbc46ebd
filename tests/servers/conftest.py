"""Servers and twins of the tests of servers, and the table of what was found."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers import postgres
from tests.servers.counting import Counts, counts
from tests.servers.faults import FAULTS
from tests.servers.installations import Installations
from tests.servers.marking import VARIABLE
from tests.servers.table import Table
from tests.servers.work import Heard, Work, arguments, weights

LINES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("servers") and VARIABLE not in os.environ:
            item.add_marker(pytest.mark.skip(reason="`make test-servers` runs it"))


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def installations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    made = Installations(folder, f"sqlite:///{folder / 'clusters.db'}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def table(tmp_path_factory, pytestconfig):
    """The table, whose new rows are printed after the last test."""
    packages = {"mlflow": "MLflow", "ray": "Ray", "moto": "moto", "boto3": "boto3"}
    packages |= {"psycopg2-binary": "psycopg2-binary"}
    versions = [f"{shown} {version(name)}" for name, shown in packages.items()]
    about = ", ".join([f"PostgreSQL {postgres.version()}", *versions])
    names = [fault.identity for fault in FAULTS]
    made = Table(f"{about}.", names, tmp_path_factory.mktemp("table") / "servers.csv")
    yield made
    pytestconfig.stash[LINES] = [*made.lines, "", f"These rows are in {made.page}."]


@dataclass(frozen=True)
class Twin:
    """A work that nothing has disturbed."""

    heard: Heard
    counts: Counts
    weights: dict[str, str]


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    """The function that returns the twin of a work, which is trained once."""
    folder = tmp_path_factory.mktemp("twins")
    uri = f"sqlite:///{folder / 'twins.db'}"

    @cache
    def trained(work: str) -> Twin:
        out = folder / work.replace(" ", "-")
        heard = Work(arguments(work, out, uri, work), out).wait()
        assert heard.code == 0, heard.text
        return Twin(heard, counts(uri, work), weights(out))

    return lambda work: trained(work.partition(",")[0])


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch, tmp_path: Path):
    """Commands have a state folder of their own, and no cores to themselves."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Ray would end workers if other programs need the memory of the machine.
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    for name in ("FLBENCH_WORKER", "RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
