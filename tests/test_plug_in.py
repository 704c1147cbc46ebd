"""A package with a method, as the guide describes it: it runs, keeps the contract, and is tuned."""

import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    Communication,
    LocalProgram,
    Paper,
    Update,
    repeat,
)
from flbench.cli import app
from flbench.config.sources import Layer, from_overrides
from flbench.testing import SMALL, Contract, Played, summary_of
from flbench.tuning import prepare
from flbench.tuning.request import TuneRequest
from tests.forks import completed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guides" / "your-method.md").read_text("utf-8")


def block(start: str) -> str:
    """The text of the only block of the guide that begins with a line."""
    [text] = re.findall(rf"```{re.escape(start)}\n(.*?)```", GUIDE, re.DOTALL)
    return text


def installed(folder: Path, name: str, points: dict[str, dict[str, str]]) -> None:
    """Describe a package to Python as pip does when it installs one."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The guide's package, installed into a folder beside its tests."""
    root = tmp_path_factory.mktemp("flbench-slow")
    project = tomllib.loads(block('toml title="pyproject.toml"'))
    [name] = project["tool"]["setuptools"]["packages"]
    site = root / "site"
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").touch()
    (site / name / "slow.py").write_text(block('python title="flbench/algorithms/slow.py"'))
    (site / name / "slow.yaml").write_text(block(f'yaml title="{name}/slow.yaml"'))
    packed = {
        file.name
        for pattern in project["tool"]["setuptools"]["package-data"][name]
        for file in (site / name).glob(pattern)
    }
    assert packed == {"slow.yaml"}
    installed(site, project["project"]["name"], project["project"]["entry-points"])
    (root / "tests").mkdir()
    (root / "tests" / "test_slow.py").write_text(block("python\n# tests/test_slow.py"))
    return root


@pytest.fixture
def registered(package, monkeypatch):
    """The package's method, found by its entry point, for one test."""
    monkeypatch.syspath_prepend(str(package / "site"))
    monkeypatch.setattr(ALGORITHMS, "_complete", False)
    yield
    del ALGORITHMS["slow"]
    for name in [name for name in sys.modules if name.startswith("flbench_slow")]:
        del sys.modules[name]


@pytest.mark.full
def test_its_tests_and_the_contract_pass(package, tmp_path):
    """In a pytest of its own, which has only the settings of the package."""

    def play():
        os.chdir(package)
        os.environ.pop("PYTEST_ADDOPTS", None)
        sys.path.insert(0, str(package / "site"))
        ALGORITHMS._complete = False
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        return pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"])

    done = completed(tmp_path, play)

    assert done.returncode == 0, done.stdout[-3000:]
    tests = [name for name in dir(Contract) if name.startswith("test_")]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) == len(tests) + 1
    assert "skipped" not in done.stdout


def test_method_is_listed_and_runs(registered, tmp_path, capsys):
    assert app.main(["algos", "slow"]) == 0
    assert "strength of the pull in the last round" in capsys.readouterr().out

    assert app.main(["run", "--algo", "slow", "--out", str(tmp_path), *SMALL]) == 0
    [folder] = tmp_path.glob("*/*")
    assert summary_of(folder)["algorithm"] == "slow"


def test_study_takes_the_space_of_the_package(registered, package):
    layers = [from_overrides([item for item in SMALL if not item.startswith("engine.")])]
    layers.append(Layer({"algorithm": {"name": "slow"}}, {"algorithm.name": "--algo"}))

    prepared = prepare.prepare(TuneRequest(("slow",), trials=4), {"slow": layers})

    space = prepared.spaces["slow"]
    assert Path(space.source) == package / "site" / "flbench_slow" / "slow.yaml"
    assert list(space.parameters) == ["train.optimizer.lr", "algorithm.mu", "algorithm.memory"]
    trial = prepared.proposals()["slow"].given({})[1]
    assert 0.5 <= trial["algorithm.memory"] <= 0.99


def test_contract_names_what_is_wrong_with_its_methods():
    class OfAString(Contract):
        methods = "slow"

    for contract in (OfAString(), Contract()):
        with pytest.raises(pytest.UsageError, match="must be a tuple with the names of methods"):
            contract.pytest_generate_tests(None)


def test_contract_finds_state_that_a_checkpoint_does_not_hold(tmp_path_factory):
    calls = []

    @ALGORITHMS.register("hidden")
    class Hidden(Algorithm):
        """FedAvg, whose server shrinks the mean a little more after each second round.

        The trial before a run consists of first and last rounds, so it cannot find this state.
        """

        paper = Paper("Hidden", "nobody", "invented")
        communication = Communication(down="w", up="w", keeps="nothing")

        def aggregate(self, state, results):
            if state.round == 1:
                calls.append(state.round)
            change = super().aggregate(state, results).server
            return Update({key: value * 0.99 ** len(calls) for key, value in change.items()})

    try:
        method = Played("hidden", lambda: tmp_path_factory.mktemp("hidden"))
        with pytest.raises(AssertionError):
            Contract().test_crash_and_resume_end_like_the_straight_run(
                method, tmp_path_factory.mktemp("crash")
            )
    finally:
        del ALGORITHMS["hidden"]


def test_contract_finds_a_trained_tensor_on_which_the_loss_does_not_depend(tmp_path_factory):
    @ALGORITHMS.register("idle")
    class Idle(Algorithm):
        """FedAvg, whose clients have a vector that no term reads."""

        paper = Paper("Idle", "nobody", "invented")
        communication = Communication(down="w", up="w", keeps="1 number")

        def init(self, start):
            server, clients = super().init(start)
            return server, clients | repeat({"shift": torch.zeros(1)}, self.setting.clients)

        def program(self, state):
            names = frozenset([*self.setting.net.parameters, "shift"])
            phase = self.phase(*self.terms(), train=names)
            keeps, sends = self.split()
            return LocalProgram((phase,), keeps | {"shift"}, sends)

    try:
        method = Played("idle", lambda: tmp_path_factory.mktemp("idle"))
        with pytest.raises(AssertionError, match="shift"):
            Contract().test_tensors_that_a_phase_trains_at_the_client_change(method)
    finally:
        del ALGORITHMS["idle"]


def test_contract_finds_a_personal_leaf_that_training_loses(tmp_path_factory):
    @ALGORITHMS.register("forgetful")
    class Forgetful(Algorithm):
        """Clients train a head of their own, which they do not keep."""

        paper = Paper("Forgetful", "nobody", "invented")
        communication = Communication(down="body", up="body", keeps="nothing")

        def personal(self):
            return self.setting.net.names("head")

        def program(self, state):
            return replace(super().program(state), keeps=frozenset())

    try:
        method = Played("forgetful", lambda: tmp_path_factory.mktemp("forgetful"))
        with pytest.raises(AssertionError):
            Contract().test_personal_leaves_stay_with_their_client(method)
    finally:
        del ALGORITHMS["forgetful"]
