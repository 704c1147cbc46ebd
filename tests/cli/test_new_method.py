"""`flbench new-method`: the package that it writes works, is tested, tuned, and clean at once."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.cli import app
from flbench.testing import SMALL, summary_of
from flbench.tuning import library
from tests.forks import Fork

SOURCE = "flbench_my_idea/my_idea.py:MyIdea"


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


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package of the method `my_idea`."""
    folder = tmp_path_factory.mktemp("new") / "package"
    assert app.main(["new-method", "my_idea", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def inside(package, monkeypatch):
    """The package's folder is the current one; its modules are forgotten after the test."""
    monkeypatch.chdir(package)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "flbench_my_idea"]:
        del sys.modules[name]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
@pytest.mark.parametrize("name", ["a", "a" * 24])
def test_what_is_written_is_clean(name, command, here):
    assert app.main(["new-method", name]) == 0

    [folder] = here.iterdir()
    ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", str(folder)]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_its_tests_pass_without_an_installation(package, tmp_path):
    """In a pytest of its own, which has only the settings of the package."""
    quick = (
        "not crash and not batchnorm and not diverge and not unpaid and not order and not straight"
        " and not finite"
    )

    def play():
        os.chdir(package)
        os.environ.pop("PYTEST_ADDOPTS", None)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", quick]
        return pytest.main(options)

    fork = Fork(tmp_path, play)

    assert fork.wait() == 0, fork.out[-3000:]
    [passed] = re.findall(r"(\d+) passed", fork.out)
    assert int(passed) >= 12
    assert "skipped" not in fork.out
    assert "warning" not in fork.out


@pytest.mark.slow
def test_method_runs_and_is_tuned_by_its_file(inside, tmp_path, capsys):
    assert app.main(["run", SOURCE, "--out", str(tmp_path), *SMALL]) == 0
    [run] = tmp_path.glob("*/*")
    assert summary_of(run)["algorithm"] == "my_idea"

    capsys.readouterr()
    keys = [key for key in SMALL if not key.startswith("engine.")]
    assert app.main(["tune", SOURCE, "--trials", "3", "--dry-run", "--json", *keys]) == 0
    assert json.loads(capsys.readouterr().out)["trainings"]["search"] == 3
    assert "algorithm.memory" in library.built_in("my_idea", rounds=3).parameters


def test_installed_package_is_found_by_its_name(inside, tmp_path, monkeypatch, capsys):
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    installed(tmp_path, project["project"]["name"], project["project"]["entry-points"])
    assert all(Path(name).is_dir() for name in project["tool"]["setuptools"]["packages"])
    monkeypatch.syspath_prepend(str(inside))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ALGORITHMS, "_complete", False)

    assert app.main(["algos", "my_idea"]) == 0
    assert "memory" in capsys.readouterr().out
    assert app.main(["new-method", "my_idea", "--out", str(tmp_path / "again")]) == 2
    text = (inside / "README.md").read_text("utf-8")
    for path in re.findall(r"`([\w/]+\.(?:py|yaml|toml))`", text):
        assert (inside / path).is_file() or (inside / "flbench_my_idea" / path).is_file(), path
    assert "$name" not in text.lower()


@pytest.mark.parametrize("name", ["fedavg", "My-Idea", "2nd", "../up", "é", "import", "none"])
def test_names_that_cannot_be_used_are_errors(name, here, capsys):
    assert app.main(["new-method", name]) == 2

    assert name in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_nothing_is_overwritten(here, capsys):
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full", "pyproject.toml").write_text("mine")
    Path("lost").symlink_to("nowhere")
    for folder in ("file", "full", "lost", "file/below"):
        assert app.main(["new-method", "idea", "--out", folder]) == 2
        assert folder.partition("/")[0] in capsys.readouterr().err
    assert Path("file").read_text() == Path("full", "pyproject.toml").read_text() == "mine"
    assert len(list(Path("full").iterdir())) == 1
