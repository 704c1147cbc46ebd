"""Malformed inputs: each gets a message and exit code 2, or is accepted; none gets a traceback.

`FLBENCH_FAULTS_SEED` sets the seed and `FLBENCH_FAULTS_INPUTS` the number of inputs.
"""

import os
import sys
from collections import Counter

import pytest

from tests.faults.inputs import Originals, calls
from tests.faults.processes import Outcome, outcomes
from tests.support import interrupted_run, run

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
COUNT = int(os.environ.get("FLBENCH_FAULTS_INPUTS", "490"))
LIMIT = 30.0  # seconds of a call; an intact input of this size takes less than one
LONGEST = 330  # characters of a line of a message: 300, and "error: " or a frame
MOST_LINES = 30

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    finished, _ = run(root / "finished", "algorithm=fedavg")
    return Originals(
        finished=finished,
        interrupted=interrupted_run(root / "interrupted", "algorithm=fedavg"),
    )


def faults(outcome: Outcome) -> list[str]:
    """Return what is wrong with the way in which a call ended."""
    if outcome.is_stopped:
        return ["hang"]
    found = []
    if "Traceback (most recent call last)" in outcome.err:
        found.append("traceback")
    elif outcome.code is None:
        found.append("death")
    elif outcome.code not in (0, 2):
        found.append(f"exit code {outcome.code}")
    elif outcome.code == 0 and outcome.call.is_wrong:
        found.append("silently accepted")
    else:
        lines = outcome.err.splitlines()
        if any(len(line) > LONGEST for line in lines) or len(lines) > MOST_LINES:
            found.append("long message")
        if outcome.code == 2 and not outcome.err.strip():
            found.append("no message")
        if "Warning: " in outcome.err:
            found.append("warning of a library")
    return found


def test_malformed_inputs_get_a_message(originals, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = list(
        outcomes(calls(SEED, COUNT, tmp_path / "calls", originals), workers=2, limit=LIMIT)
    )

    counts = Counter(fault for outcome in ended for fault in faults(outcome))
    accepted = sum(outcome.code == 0 for outcome in ended)
    refused = sum(outcome.code == 2 for outcome in ended)
    slowest = max(ended, key=lambda outcome: outcome.seconds)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(ended)} malformed inputs (seed {SEED}): {refused} refused, {accepted} accepted"
            f" as harmless or cut off, {dict(counts) or 'no fault'};"
            f" slowest {slowest.seconds:.1f} s ({slowest.call.title})\n"
        )
    described = [
        f"{', '.join(found)}: {outcome.call.title} ({outcome.seconds:.1f} s)\n"
        + outcome.err.strip()[-600:]
        for outcome in ended
        if (found := faults(outcome))
    ]
    assert not described, "\n\n".join(described)
    assert len(ended) == COUNT
    assert refused > COUNT / 3
