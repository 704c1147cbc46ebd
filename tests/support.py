"""Helpers of the tests: configurations, runs in this process, tiny data files."""

import json
import os
import signal
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_overrides
from flbench.experiment import assembly, lifecycle

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

# Five clients on the digits: a round takes a few hundredths of a second.
SMALL = (
    "partition.clients=5",
    "partition.alpha=0.5",
    "train.rounds=3",
    "train.local_epochs=1",
    "evaluation.every=2",
    "engine.threads=1",
    "tracking.mlflow=false",
)


class Silent:
    """A reporter that records notes and rounds."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rounds: list[int] = []

    def begin(self, done: int, rounds: int) -> None:
        pass

    def round_done(self, done: int, loss: float) -> None:
        self.rounds.append(done)

    def evaluated(self, done: int, metrics: Mapping[tuple[str, str, str], float]) -> None:
        pass

    def warn(self, text: str) -> None:
        self.notes.append(text)


def config_of(*overrides: str) -> Config:
    return resolve([from_overrides([*SMALL, *overrides])])[0]


def build(*overrides: str) -> assembly.Experiment:
    return assembly.build(config_of(*overrides))


def run(out: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    config, origins = resolve([from_overrides([*SMALL, f"output.dir={out}", *overrides])])
    path = lifecycle.run(config, origins, Silent())
    return path, summary_of(path)


@cache
def summary_of_run(*overrides: str) -> dict[str, Any]:
    """Return the summary of a run; the same overrides train once in each test process.

    For tests that read the summary alone. That a second run would give the same digest is a test of
    its own (tests/algorithms/test_contract.py).
    """
    with TemporaryDirectory() as folder:
        return run(Path(folder), *overrides)[1]


def summary_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text())


def reproducible(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without times and the machine, which differ between equal runs."""
    return {key: value for key, value in summary.items() if key not in ("seconds", "engine")}


def write_npz(path: Path, n: int = 120, classes: int = 4, size: int = 8, **extra: Any) -> Path:
    """Write a data set whose classes are bright squares at different positions."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", n), ("test", n // 2)):
        y = np.arange(count) % classes
        x = rng.integers(0, 60, (count, size, size), dtype=np.uint8)
        for i, label in enumerate(y):
            x[i, 2 * label : 2 * label + 2, 2 * label : 2 * label + 2] += 150
        arrays |= {f"{part}_images": x, f"{part}_labels": y[:, None]}
    np.savez(path, **(arrays | extra))
    return path


class Interrupting(Silent):
    """Sends SIGINT to this process after two rounds, while nothing is being trained."""

    def round_done(self, done: int, loss: float) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted_run(out: Path, *overrides: str) -> Path:
    """Run an experiment that is interrupted after two rounds; return its folder."""
    config, origins = resolve([from_overrides([*SMALL, f"output.dir={out}", *overrides])])
    with pytest.raises(KeyboardInterrupt):
        lifecycle.run(config, origins, Interrupting())
    [folder] = out.glob("*/*")
    return folder
