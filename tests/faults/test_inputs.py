"""Malformed inputs: each gets a message and exit code 2, or is accepted; none gets a traceback.

`FLBENCH_FAULTS_SEED` sets the seed and `FLBENCH_FAULTS_INPUTS` the number of inputs.
"""

import os
import resource

import pytest

from flbench.cli import app
from tests.faults.inputs import Call, Originals, calls
from tests.forks import Fork
from tests.support import interrupted_run, run

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
COUNT = int(os.environ.get("FLBENCH_FAULTS_INPUTS", "270"))
LIMIT = 30.0  # seconds of a call; an intact input of this size takes less than one
MEMORY = 16 * 2**30  # bytes of addresses: a device without an end must not take the machine's

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    finished, _ = run(root / "finished", "algorithm=fedavg")
    return Originals(
        finished=finished, interrupted=interrupted_run(root / "interrupted", "algorithm=fedavg")
    )


def called(call: Call) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(call.folder)
    return app.main(list(call.arguments))


def fault(call: Call, code: int | None, err: str) -> str | None:
    """Return what is wrong with the way in which a call ended."""
    found = {
        "hang": code is None,
        "traceback": "Traceback (most recent call last)" in err,
        f"exit code {code}": code not in (0, 2),
        "silently accepted": code == 0 and call.is_wrong,
        "no message": code == 2 and not err.strip(),
        "warning of a library": "Warning: " in err,
    }
    return next((name for name, is_so in found.items() if is_so), None)


def test_malformed_inputs_get_a_message(originals, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found, refused = [], 0
    for call in calls(SEED, COUNT, tmp_path / "calls", originals):
        fork = Fork(tmp_path, called, call)
        try:
            code = fork.wait(LIMIT)
        except AssertionError:
            code = None
        refused += code == 2
        if wrong := fault(call, code, fork.err):
            found.append(f"{wrong}: {call.title}\n{fork.err.strip()[-600:]}")

    assert not found, "\n\n".join(found)
    assert refused > COUNT / 3
