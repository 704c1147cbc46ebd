"""Processes of Python that flbench starts import nothing of the folder they are started in."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import flbench
from flbench.config.schema import TrackingConfig
from flbench.tracking import mirror

ATTACK = "import pathlib; pathlib.Path({place!r}).touch()\n"
PROBE = "import argparse, colorsys, json, uuid, wave\n"


class StartedError(Exception):
    """Instead of a process."""

    def __init__(self, command, environment):
        super().__init__(command)
        self.command, self.environment = command, environment


def refuse(command, *, env=None, **_):
    raise StartedError(command, env)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A current folder of somebody else; return the file that appears if its code is executed."""
    place, folder = tmp_path / "executed", tmp_path / "downloaded"
    folder.mkdir()
    for name in ("argparse", "colorsys", "json", "runpy", "torch", "uuid", "wave", "sitecustomize"):
        (folder / f"{name}.py").write_text(ATTACK.format(place=str(place)))
    monkeypatch.chdir(folder)
    return place


def start_mirror(tmp_path):
    (tmp_path / "run").mkdir()
    return mirror.start(tmp_path / "run", TrackingConfig(uri=f"sqlite:///{tmp_path}/x.db"))


@pytest.mark.parametrize(
    ("start", "module"),
    [(start_mirror, mirror)],
)
def test_child_does_not_import_from_the_current_folder(start, module, place, tmp_path, monkeypatch):
    """The command that flbench starts, with a harmless module instead of its own."""
    (tmp_path / "safe").mkdir()
    (tmp_path / "safe" / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "safe"), prepend=":")
    monkeypatch.setattr("flbench.tracking.store.installed", lambda: True)
    monkeypatch.setattr(
        module,
        "subprocess",
        SimpleNamespace(Popen=refuse, run=refuse, PIPE=-1, DEVNULL=-3),
    )
    with pytest.raises(StartedError) as started:
        start(tmp_path)
    command = started.value.command
    is_module = command.index("-m")

    subprocess.run(
        [*command[:is_module], "-m", "probe"],
        env=started.value.environment,
        check=True,
        capture_output=True,
        timeout=60,
    )

    assert command[0] == sys.executable
    assert not place.exists()


@pytest.mark.slow
def test_the_command_by_python_m_imports_nothing_of_the_current_folder(place, monkeypatch):
    for name in ("typing", "signal", "collections", "tabulate"):
        Path(f"{name}.py").write_text(ATTACK.format(place=str(place)))
    monkeypatch.setenv("PYTHONPATH", str(Path(flbench.__file__).parents[1]), prepend=":")

    done = subprocess.run(
        [sys.executable, "-m", "flbench", "--version"], check=True, capture_output=True, text=True
    )

    assert done.stdout.strip() == flbench.__version__
    assert not place.exists()
