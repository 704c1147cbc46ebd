"""Commands of flbench that are disturbed, and what is heard of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Final

from tests.servers.installations import Servers
from tests.servers.server import wait_until, with_descendants
from tests.support import SMALL
from tests.tuning.test_tune import weights_in

MIRROR: Final = "flbench.tracking.follow"
"""Module of the process that sends a folder to MLflow."""
LIMIT: Final = 900.0
"""Seconds after which a command hangs."""
KEYS: Final = tuple(
    key for key in SMALL if not key.startswith(("tracking.", "train.rounds", "engine."))
)
LONG: Final = ("partition.samples=null", "train.rounds=60", "evaluation.every=4")
"""Keys of trainings that last until a node is lost, and longer."""
ONE: Final = ("--trials", "2", "--seeds", "1", "--scheduler", "none", "output.keep_trials=all")
WORKS: Final = {
    "run": ("run", "fedavg", "train.rounds=12"),
    "comparison": ("compare", "fedavg,local", "--seeds", "2", "train.rounds=6"),
    "study": ("tune", "fedavg", *ONE, "--jobs", "2", "train.rounds=12"),
    "long run": ("run", "fedavg", *LONG, "engine.workers=2"),
    "long comparison": ("compare", "fedavg,fedprox", "--seeds", "1", "--jobs", "2", *LONG),
    "long study": ("tune", "fedavg", *ONE, "--jobs", "2", *LONG),
}
"""Arguments of flbench by the names of works."""


@dataclass(frozen=True)
class Heard:
    """What a command has said.

    Attributes:
        code: Its exit code.
        text: Its standard error, each line with the time in seconds since the start.
        silence: Longest time in seconds without a line of standard error.
    """

    code: int
    text: str
    silence: float


class Work:
    """A command of flbench that trains, in a process of its own.

    Args:
        name: Name of the work; see `WORKS`.
        out: Folder for the folder of the run, comparison or study.
        servers: Servers that it uses.
        experiment: Name of MLflow's experiment.
    """

    def __init__(self, name: str, out: Path, servers: Servers, experiment: str) -> None:
        self.out = out
        # The workers of a run are on both nodes; other works have a training on each.
        self.at_once = 1 if name == "long run" else 2
        command = [sys.executable, "-m", "flbench", *arguments(name, out, servers, experiment)]
        if servers.nodes is not None:
            command = servers.nodes.inside(command)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | servers.environment,
            start_new_session=True,
        )
        self._said: list[tuple[float, str]] = []
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        Thread(target=self._hurry_mirror, daemon=True).start()

    @property
    def folders(self) -> list[Path]:
        """The folders of all runs, comparisons or studies."""
        markers = ("*/study.json", "*/comparison.json", "*/*/summary.json")
        return next(filter(None, (folders_of(self.out, marker) for marker in markers)), [])

    def wait_for_rounds(self, trainings: int) -> None:
        """Wait until some trainings at the same time have evaluated their first rounds."""

        def have_begun() -> bool:
            assert self._process.poll() is None, self._said
            tables = list(self.out.rglob("metrics.csv"))
            return sum(file.read_text().count("\n") > 1 for file in tables) >= trainings

        wait_until(have_begun, f"{trainings} trainings have not begun", LIMIT / 2)

    def wait(self) -> Heard:
        """Wait for the end of the command, and of what it has left to send."""
        try:
            code = self._process.wait(max(1.0, self._began + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            code = -signal.SIGKILL
        self._listener.join(10)
        times = [0.0, *(when for when, _ in self._said)]
        lines = [f"{when:7.1f} {line}" for when, line in self._said]
        wait_until(lambda: not self._mirrors(), "the mirror did not end")
        return Heard(code, "\n".join(lines), max(after - one for one, after in pairwise(times)))

    def end(self) -> None:
        """End the command with its children, if it still runs."""
        if self._process.poll() is None:
            for pid in with_descendants(self._process.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _mirrors(self) -> list[int]:
        """Return the processes that send the folder to MLflow: they may outlive the command."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = file.read_bytes().decode(errors="replace").split("\0")
                if MIRROR in words and any(word.startswith(str(self.out)) for word in words):
                    found.append(int(file.parent.name))
        return found

    def _hurry_mirror(self) -> None:
        """Give mirrors the priority of other processes: the machine may have other work."""
        while self._process.poll() is None or self._mirrors():
            for mirror in self._mirrors():
                with suppress(OSError):  # it has ended
                    os.setpriority(os.PRIO_PGRP, mirror, 0)
            time.sleep(2)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._said.append((time.monotonic() - self._began, line.rstrip()))
        self._said.append((time.monotonic() - self._began, "the end"))


def folders_of(out: Path, marker: str) -> list[Path]:
    """Return the folders below a folder that have a file."""
    return sorted(file.parent for file in out.glob(marker))


def arguments(name: str, out: Path, servers: Servers, experiment: str) -> list[str]:
    """Return the arguments of flbench for a work."""
    is_run = WORKS[name][0] == "run"
    folder = [f"output.dir={out}"] if is_run else ["--out", str(out)]
    engine = ["engine.name=sequential"]
    if servers.nodes is not None:
        address = servers.nodes.address
        # Actors of Ray train like one process, and not like the vectorized engine.
        of_run = ["engine.name=ray", f"engine.address={address}"]
        engine = of_run if is_run else ["--address", address, *engine]
    tracking = [
        *("tracking.mlflow=true", f"tracking.uri={servers.uri}"),
        f"tracking.experiment={experiment}",
    ]
    return [*WORKS[name], *engine, *KEYS, *folder, *tracking]


def weights(out: Path) -> Mapping[str, str]:
    """Return the SHA-256 of the last weights of each training, by what it trains.

    The name of a run's folder begins with method and seed; a time follows. Folders of trials and
    cells have no time in their names.
    """
    found = {}
    for file in sorted(out.rglob("checkpoints/last.safetensors")):
        folder = file.parent.parent
        _, *parts = folder.relative_to(out).parts
        name = "-".join(parts[0].split("-")[:2]) if len(parts) == 1 else "/".join(parts)
        found[name] = weights_in(folder)
    return found
