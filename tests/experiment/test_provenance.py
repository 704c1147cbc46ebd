"""The values of provenance.json equal those of other tools."""

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from flbench.experiment import provenance
from flbench.workers.shipping import pack

ROOT = Path(__file__).resolve().parents[2]


def git(*arguments):
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


@pytest.mark.skipif(git("rev-parse", "HEAD") is None, reason="not a checkout of Git")
def test_revision_is_that_of_the_checkout():
    provenance.git_revision.cache_clear()  # the tests remember the answer
    changed = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""

    assert provenance.git_revision() == git("rev-parse", "HEAD")[:12] + changed


def test_versions_hardware_and_command(monkeypatch):
    address = "tracking.uri=http://ann:x7@host:5000"
    monkeypatch.setattr("sys.argv", ["flbench", "run", address, "data.path=my file.npz"])

    found = provenance.now()

    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == version("torch")
    assert found["threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert found["command"] == (
        "flbench run 'tracking.uri=http://***@host:5000' 'data.path=my file.npz'"
    )


def test_a_worker_records_the_command_of_the_user(monkeypatch):
    monkeypatch.setattr("sys.argv", ["flbench", "compare", "hfcd", "tracking.uri=http://a:b@host"])
    parcel = pack({})
    monkeypatch.setattr("sys.argv", ["default_worker.py", "--node-ip-address=10.0.0.1"])
    monkeypatch.setattr("sys.path", [*sys.path])

    with parcel.opened():
        inside = provenance.now()["command"]

    assert inside == "flbench compare hfcd 'tracking.uri=http://***@host'"
