"""Servers and twins of the tests of servers, and the table of what was found."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers import VARIABLE
from tests.servers.counting import Counts, counts
from tests.servers.installations import Installations, Servers
from tests.servers.work import Heard, Work, weights

ROWS = pytest.StashKey[list[str]]()
HEADER = (
    *("fault", "servers", "work", "exit", "runs", "points", "files", "weights", "again"),
    "silence",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("servers") and VARIABLE not in os.environ:
            item.add_marker(pytest.mark.skip(reason="`make test-servers` runs it"))


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(ROWS, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def installations(tmp_path_factory):
    made = Installations(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def table(pytestconfig):
    """The function that adds a row to the table, which is printed after the last test."""
    packages = {"mlflow": "MLflow", "ray": "Ray", "moto": "moto", "boto3": "boto3"}
    about = ", ".join(f"{shown} {version(name)}" for name, shown in packages.items())
    rows = pytestconfig.stash[ROWS] = [f"{about}.", ""]

    def add(*cells: object) -> None:
        rows.append(f"| {' | '.join(map(str, cells))} |")

    add(*HEADER)
    add(*["---"] * len(HEADER))
    return add


@dataclass(frozen=True)
class Twin:
    """A work that nothing has disturbed."""

    heard: Heard
    counts: Counts
    weights: Mapping[str, str]


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    """The function that returns the twin of a work, which is trained once."""
    folder = tmp_path_factory.mktemp("twins")
    servers = Servers(f"sqlite:///{folder / 'twins.db'}")

    @cache
    def trained(work: str) -> Twin:
        out = folder / work.replace(" ", "-")
        heard = Work(work, out, servers, work).wait()
        assert heard.code == 0, heard.text
        return Twin(heard, counts(servers.uri, work), weights(out))

    return trained


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch, tmp_path: Path):
    """Commands have a state folder of their own, and no cores to themselves."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Ray would end workers if other programs need the memory of the machine.
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    for name in ("FLBENCH_WORKER", "RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
