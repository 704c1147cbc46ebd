"""Runs that are killed at random moments: the resumed run ends with the bytes of the straight one.

`FLBENCH_FAULTS_SEED` sets the seed, and `FLBENCH_FAULTS_METHODS` the methods (default: all).
"""

import ctypes
import mmap
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.sources import from_file
from flbench.experiment import checkpoint
from flbench.results import metrics_file
from flbench.testing import SMALL, reproducible, summary_of, with_method
from tests.forks import Fork

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
METHODS = os.environ.get("FLBENCH_FAULTS_METHODS", ",".join(ALGORITHMS.load())).split(",")
LIMIT = 60.0  # seconds of a call that is not killed earlier
KILLS = 3  # of each method on each engine
ON_RAY = random.Random(f"{SEED} ray").sample(METHODS, min(3, len(METHODS)))
CHAINS = [
    *((method, engine) for method in METHODS for engine in ("sequential", "vectorized")),
    *((method, "ray") for method in ON_RAY),
]
TABLES = ("metrics.csv", "clients.csv", "per_class.csv", "confusion.csv")

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


class Calls:
    """Calls the command line in forks, and kills them.

    Args:
        folder: Folder for what the calls print.

    Attributes:
        changes: Number of changes of the run's files in the last call: opened for writing, renamed,
            removed, or a folder made.
        seconds: Wall-clock time of the last call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, 0.0
        self._count = (ctypes.c_int64 * 1).from_buffer(mmap.mmap(-1, 8))  # it outlives a fork

    @property
    def changes(self) -> int:
        return self._count[0]

    def call(self, *words: str, seconds: float = LIMIT, change: int | None = None) -> int:
        """Return the exit code of a call that is killed after seconds, or before a change."""
        self._count[0], begin = 0, time.monotonic()
        fork = Fork(self.folder, self._child, [*words], change)
        while fork.is_running() and time.monotonic() < begin + seconds:
            time.sleep(0.001)
        is_late = fork.is_running()
        if is_late:
            fork.kill()
        self.seconds, code = time.monotonic() - begin, fork.wait()
        with suppress(OSError):  # what a killed process has left behind, such as Ray's servers
            os.killpg(fork.process.pid, signal.SIGKILL)
        assert "Traceback (most recent call last)" not in fork.err, fork.err
        assert not (is_late and seconds == LIMIT), "the call hangs"
        assert code in (0, 2, -signal.SIGKILL), fork.err
        return code

    def _child(self, words: list[str], change: int | None) -> int:
        os.setsid()
        os.chdir(self.folder)
        sys.addaudithook(lambda event, args: self._hook(event, args, change))
        return app.main(words)

    def _hook(self, event: str, args: tuple[Any, ...], change: int | None) -> None:
        if event not in ("open", "os.rename", "os.mkdir", "os.remove"):
            return
        path = args[0]
        if not isinstance(path, str | os.PathLike) or str(self.folder) not in os.fspath(path):
            return
        # `args` of open: path, mode, flags. The mode is None for `os.open`.
        if event == "open" and (args[1] is None or not set(args[1]) & set("wax+")):
            return
        self._count[0] += 1
        if self._count[0] == change:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("method", "engine"), CHAINS)
def test_a_killed_run_is_resumed_and_ends_like_the_straight_one(method, engine, tmp_path):
    """A run is killed, resumed and killed again, and at last resumed to its end."""
    draw, calls = random.Random(f"{SEED} {method} {engine}"), Calls(tmp_path)
    every = f"output.checkpoint_every={draw.choice((1, 2))}"
    keys = [*SMALL, *with_method(method), "train.rounds=4", every]
    if draw.random() < 0.3:
        keys.append("engine.state_memory=0")  # the clients' state is a mapped file
    # Ray's workers compute what the sequential engine does, bit for bit, and start for seconds.
    plain = "sequential" if engine == "ray" else engine
    out = f"output.dir={tmp_path}/straight"
    assert calls.call("run", *keys, f"engine.name={plain}", out) == 0
    [reference] = (tmp_path / "straight").glob("*/*/")
    seconds, changes = calls.seconds, calls.changes
    assert changes > 20
    own = [f"engine.name={engine}", *(["engine.workers=2"] if engine == "ray" else [])]
    words = ["run", *keys, *own, f"output.dir={tmp_path}/killed"]
    left = 1.0  # share of the run that a resume still has to do
    for _ in range(1 if engine == "ray" else KILLS):
        # On Ray never before the run can be resumed.
        share = draw.uniform(0.45, 0.95) if engine == "ray" else draw.random()
        if engine == "ray" or draw.random() < 0.5:
            code = calls.call(*words, change=1 + int(share * left * changes))
            assert code == -signal.SIGKILL or left < 1.0
        else:
            code = calls.call(*words, seconds=share * left * seconds)
        found = [file.parent for file in (tmp_path / "killed").glob("*/*/config.yaml")]
        if found:
            [run] = found
            if code:
                assert code == -signal.SIGKILL
                check_nothing_is_lost(run, reference)
            words, left = ["run", "--resume", str(run)], left * (1 - share)
            continue
        for folder in (tmp_path / "killed").glob("*/*/"):  # killed during the preparation
            assert calls.call("run", "--resume", str(folder)) == 2
    assert calls.call(*words) == 0
    [run] = (file.parent for file in (tmp_path / "killed").glob("*/*/summary.json"))
    assert reproducible(summary_of(run)) == reproducible(summary_of(reference))
    for name in TABLES:
        assert (run / name).read_bytes() == (reference / name).read_bytes(), name
    assert not [file.name for file in run.rglob("*.part")]


def check_nothing_is_lost(run: Path, reference: Path) -> None:
    """Check that what was written is the beginning of what the straight run wrote."""
    metrics, last = run / "metrics.csv", run / "checkpoints" / "last.safetensors"
    config, _ = resolve([from_file(run / "config.yaml")])
    done = 0
    if last.exists():
        state, extra = checkpoint.load(last, config.hash())
        done = state.round
        assert len(metrics_file.read(metrics)) >= extra["rows"]
    if not metrics.exists():
        return
    text = metrics.read_bytes()
    assert (reference / "metrics.csv").read_bytes().startswith(text)
    if b"\n" in text and (rows := metrics_file.read(metrics)):
        # A run in its next round has not saved it yet.
        assert max(row.round for row in rows) - done <= config.output.checkpoint_every
