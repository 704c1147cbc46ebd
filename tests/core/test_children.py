"""Processes of Python that flbench starts import nothing of the folder they are started in."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import flbench
from flbench.config.schema import TrackingConfig
from flbench.tracking import mirror

ATTACK = "import pathlib; pathlib.Path({place!r}).touch()\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A current folder of somebody else; return the file that appears if its code is executed."""
    place, folder = tmp_path / "executed", tmp_path / "downloaded"
    folder.mkdir()
    for name in ("argparse", "json", "runpy", "torch", "uuid", "sitecustomize", "typing", "signal"):
        (folder / f"{name}.py").write_text(ATTACK.format(place=str(place)))
    monkeypatch.chdir(folder)
    return place


def test_child_does_not_import_from_the_current_folder(place, tmp_path, monkeypatch):
    """The command by which the mirror to MLflow is started, with a harmless module."""
    (tmp_path / "run").mkdir()
    (tmp_path / "safe").mkdir()
    (tmp_path / "safe" / "probe.py").write_text("import argparse, json, uuid\n")
    started = []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "safe"), prepend=":")
    monkeypatch.setattr("flbench.tracking.store.installed", lambda: True)
    fake = SimpleNamespace(Popen=lambda command, env, **_: started.append((command, env)), PIPE=-1)
    monkeypatch.setattr(mirror, "subprocess", fake)

    with suppress(AttributeError):  # there is no process
        mirror.Mirror().start(tmp_path / "run", TrackingConfig(uri=f"sqlite:///{tmp_path}/x.db"))
    [(command, environment)] = started
    probe = [*command[: command.index("-m")], "-m", "probe"]
    subprocess.run(probe, env=environment, check=True, capture_output=True, timeout=60)

    assert command[0] == sys.executable
    assert not place.exists()


@pytest.mark.slow
def test_the_command_by_python_m_imports_nothing_of_the_current_folder(place, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(flbench.__file__).parents[1]), prepend=":")

    done = subprocess.run(
        [sys.executable, "-m", "flbench", "--version"], check=True, capture_output=True, text=True
    )

    assert done.stdout.strip() == flbench.__version__
    assert not place.exists()
