"""Studies whose Ray servers are killed, or terminated with them: they end soon and are resumed."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_worker_kills import below
from tests.tuning.test_tune import arguments, begin, records, study_in, tune, wait_for, weights_in

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# A worker that dies with its server is not a failed trial, also without another attempt.
MORE = ("--trials", "3", "--seeds", "1", "--scheduler", "none", "--retries", "0", "train.rounds=60")
SERVERS = {"gcs": "gcs_server", "raylet": "raylet/raylet ", "all": "gcs_server|raylet/raylet "}
"""Patterns of the command lines of Ray's servers."""
SECONDS = 20  # until a study has ended


def results_of(study: Path) -> dict[str, tuple[Any, ...]]:
    """Return parameters, state, score and weights of each trial."""
    return {
        name: (record["params"], record["state"], record["score"], weights_in(study / name))
        for name, record in records(study).items()
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The result of a study that is not interrupted."""
    return results_of(tune(tmp_path_factory.mktemp("straight"), "fedavg", *MORE))


def ends_soon(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of a study, and return the lines that it has said."""
    start = time.monotonic()
    said = process.communicate(timeout=90)[1]
    assert time.monotonic() - start < SECONDS
    assert "Traceback" not in said, said
    return said.splitlines()


def check_resumed(study: Path, straight: dict[str, tuple[Any, ...]]) -> None:
    """Resume a study; what had ended is not touched, and the result is the one of a whole study."""
    before = records(study)
    assert all(record["state"] in ("running", "finished") for record in before.values())
    ended = [study / name / "trial.json" for name, record in before.items() if record["ended"]]
    untouched = {file: file.stat().st_mtime_ns for file in ended}

    process = begin("-m", "flbench", "tune", "--resume", str(study))

    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert results_of(study) == straight
    assert untouched == {file: file.stat().st_mtime_ns for file in ended}


@pytest.mark.parametrize(("lost", "delay"), [("gcs", 0.1), ("raylet", 0.7), ("all", 1.3)])
def test_study_whose_servers_are_killed_ends_soon_and_is_resumed(tmp_path, straight, lost, delay):
    process = begin("-m", "flbench", *arguments(tmp_path / "out", "fedavg", *MORE))
    wait_for(process, "finished")
    time.sleep(delay)
    servers = [one for one, line in below(process.pid).items() if re.search(SERVERS[lost], line)]
    assert len(servers) == (2 if lost == "all" else 1)
    for server in servers:
        os.kill(server, signal.SIGKILL)

    said = ends_soon(process)

    study = study_in(tmp_path / "out")
    assert process.returncode == 1
    assert said[-1] == (
        "error: a server of Ray has ended, or cannot be reached."
        f" Resume with: flbench tune --resume {study}"
    )
    assert (study / "report.html").exists()
    check_resumed(study, straight)


@pytest.mark.parametrize("delay", [0.0, 0.4])
def test_study_whose_whole_group_is_terminated_ends_soon_and_is_resumed(tmp_path, straight, delay):
    process = begin("-m", "flbench", *arguments(tmp_path / "out", "fedavg", *MORE))
    wait_for(process, "finished")
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGTERM)

    said = ends_soon(process)

    study = study_in(tmp_path / "out")
    assert process.returncode == 130
    assert said[-1] == f"note: interrupted. Resume with: flbench tune --resume {study}"
    check_resumed(study, straight)
