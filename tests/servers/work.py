"""Commands of flbench that are disturbed, and what is heard of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Final

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
ON_CLUSTER: Final = {
    "long run": ("engine.name=ray", "engine.address={address}"),
    "long comparison": ("--address", "{address}"),
    "long study": ("--address", "{address}"),
    "long study, 2 workers": ("--address", "{address}", "engine.name=ray", "engine.workers=2"),
}
"""Further arguments on a cluster. The results are those of the same work without a cluster."""


@dataclass(frozen=True)
class Heard:
    """What a command has said.

    Attributes:
        code: Its exit code.
        said: The lines of its standard error, each with the time in seconds since the start.
        seconds: How long it took.
        silence: Longest time in seconds without a line of standard error.
        before: The last line before this time.
    """

    code: int
    said: tuple[tuple[float, str], ...]
    seconds: float
    silence: float
    before: str

    @property
    def text(self) -> str:
        """All lines of standard error."""
        return "\n".join(line for _, line in self.said)

    @property
    def timed(self) -> str:
        """All lines of standard error with their times, and the longest silence."""
        lines = [f"{time:7.1f} {line}" for time, line in self.said]
        silence = f"{self.silence:.1f} s of silence after: {self.before}"
        return "\n".join([*lines, f"{self.seconds:7.1f} the end", silence, ""])


class Work:
    """A command of flbench that trains, in a process of its own.

    Args:
        arguments: Arguments of flbench.
        out: Folder for the folder of the run, comparison or study.
        around: Command line that the command is appended to, such as that of a namespace.
        environment: Environment variables besides those of the tests.

    Attributes:
        out: The folder.
        printed: Its standard output, after its end.
        is_on_both_nodes: Whether one training of the work uses both nodes of a cluster.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        out: Path,
        around: Sequence[str] = (),
        environment: Mapping[str, str] = {},
    ) -> None:
        self.out = out
        self.is_on_both_nodes = "engine.workers=2" in arguments
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [*around, sys.executable, "-m", "flbench", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
        self._said: list[tuple[float, str]] = [(self._began, "the start")]
        self.printed = ""
        self._ended = self._began
        self._threads = [
            Thread(target=target, daemon=True)
            for target in (self._listen, self._read, self._note_end)
        ]
        for thread in (*self._threads, Thread(target=self._hurry_mirror, daemon=True)):
            thread.start()

    @property
    def folders(self) -> list[Path]:
        """The folders of all runs, comparisons or studies."""
        found = sorted(self.out.glob("*"))
        is_whole = all(
            (one / "study.json").exists() or (one / "comparison.json").exists() for one in found
        )
        return found if is_whole else sorted(self.out.glob("*/*"))

    def wait_for_rounds(self, trainings: int) -> None:
        """Wait until some trainings at the same time have evaluated their first rounds."""

        def have_begun() -> bool:
            assert self._process.poll() is None, self._said
            tables = list(self.out.rglob("metrics.csv"))
            return sum(file.read_text().count("\n") > 1 for file in tables) >= trainings

        wait_until(have_begun, f"{trainings} trainings have not begun", LIMIT / 2)

    def wait(self) -> Heard:
        """Wait for the end of the command."""
        try:
            code = self._process.wait(max(1.0, self._began + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            code = -signal.SIGKILL
        for thread in self._threads:
            thread.join(10)
        seconds = self._ended - self._began  # it may have ended long before this call
        said = [*self._said, (self._began + seconds, "the end")]
        gaps = [(after[0] - one[0], one[1]) for one, after in pairwise(said)]
        silence, before = max(gaps)
        heard = tuple((when - self._began, line) for when, line in self._said[1:])
        wait_until(lambda: not self._mirrors(), "the mirror did not end")
        return Heard(code, heard, seconds, silence, before)

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

    def end(self) -> None:
        """End the command with its children, if it still runs."""
        if self._process.poll() is None:
            for pid in with_descendants(self._process.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _note_end(self) -> None:
        self._process.wait()
        self._ended = time.monotonic()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._said.append((time.monotonic(), line.rstrip()))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            self.printed = stream.read()


def arguments(
    work: str, out: Path, uri: str, experiment: str, address: str | None = None
) -> list[str]:
    """Return the arguments of a work.

    Args:
        work: Its name.
        out: Folder for its folder.
        uri: Address of MLflow.
        experiment: Name of MLflow's experiment.
        address: Address of a Ray cluster; None without one.
    """
    name = work.partition(",")[0]
    folder = [f"output.dir={out}"] if WORKS[name][0] == "run" else ["--out", str(out)]
    cluster = [] if address is None else [one.format(address=address) for one in ON_CLUSTER[work]]
    # Actors of Ray train like one process, and not like the vectorized engine.
    engine = [] if "engine.name=ray" in cluster else ["engine.name=sequential"]
    tracking = ["tracking.mlflow=true", f"tracking.uri={uri}", f"tracking.experiment={experiment}"]
    return [*WORKS[name], *cluster, *engine, *KEYS, *folder, *tracking]


def weights(out: Path) -> dict[str, str]:
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
