"""The small setting of the tests: configurations, runs and rounds in this process, a data file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from flbench.algorithms import ALGORITHMS
from flbench.callbacks import Callback, RunView
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_overrides
from flbench.core.tree import copied, digest
from flbench.core.types import Results, State
from flbench.experiment import assembly, lifecycle, rounds

SMALL: Final = (
    "partition.clients=5",
    "partition.alpha=0.5",
    "partition.samples=600",
    "train.rounds=3",
    "train.local_epochs=1",
    "evaluation.every=2",
    "engine.name=sequential",
    "engine.threads=1",
    "tracking.mlflow=false",
)
"""Overrides: five clients on a third of scikit-learn's digits. A round takes about 10 ms."""

NET: Final = (
    "model.name=lenet5",
    "train.participation=0.6",
    "train.local_epochs=2",
    "partition.samples=300",
)
"""Overrides: BatchNorm, several linear layers, absent clients, two epochs, few samples."""


class Silent(Callback):
    """A callback that prints nothing, and records notes and rounds.

    Attributes:
        notes: Notes of the run.
        rounds: Numbers of the completed rounds.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rounds: list[int] = []

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self.rounds.append(run.round)

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def with_method(name: str, *overrides: str) -> tuple[str, ...]:
    """Return the overrides of a method's experiment in the contract tests, its `needs` among them.

    Args:
        name: Name of the method.
        overrides: Further overrides, such as `train.rounds=2`.
    """
    given = {override.partition("=")[0] for override in overrides}
    needs = [one for one in ALGORITHMS.find(name).example() if one.partition("=")[0] not in given]
    # The last ones: an override of `model.name` begins the section `model` anew.
    return (f"algorithm.name={name}", *NET, *overrides, *needs)


def config_of(*overrides: str) -> Config:
    """Return the configuration of `SMALL` with further overrides."""
    return resolve([from_overrides([*SMALL, *overrides])])[0]


def build(*overrides: str) -> assembly.Experiment:
    """Build the experiment of `SMALL` with further overrides; nothing is trained or written."""
    return assembly.build(config_of(*overrides))


def run(out: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    """Run the experiment of `SMALL` with further overrides in this process.

    Args:
        out: Folder for the run folder.
        overrides: Overrides, such as `algorithm=fedavg`.

    Returns:
        The run folder, and the content of its summary.json.
    """
    config, origins = resolve([from_overrides([*SMALL, f"output.dir={out}", *overrides])])
    path = lifecycle.run(config, origins)
    return path, summary_of(path)


def summary_of(path: Path) -> dict[str, Any]:
    """Return the content of a run's summary.json."""
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return summary


def reproducible(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without times, machine and changed keys, which differ between equal runs."""
    left_out = ("seconds", "engine", "changed")
    return {key: value for key, value in summary.items() if key not in left_out}


def played(
    built: assembly.Experiment, state: State, ids: Tensor | None = None
) -> tuple[State, Results]:
    """Run one round, without files.

    Args:
        built: The experiment.
        state: State before the round. The leaves of its clients are written in place.
        ids: Clients [K] int64 of the cohort; None for the cohort that the method draws.

    Returns:
        The state after the round, and the results of the cohort. Masks are not applied to what it
        sent: outside of them, the server saw zeros.
    """
    stage = built.algorithm.stages()[state.stage]
    settings = rounds.settings_of(built.algorithm, state, setup=stage.setup)
    trained = rounds.train(built.algorithm, built.engine, state, settings, ids=ids)
    return rounds.exchange(built.algorithm, state, trained).state, trained.results


def after(built: assembly.Experiment, rounds: int = 2) -> State:
    """Return the state after so many rounds from the beginning; set-up rounds do not count."""
    state = built.start()
    while state.round < rounds:
        state, _ = played(built, state)
    return state


def fingerprint(state: State) -> str:
    """Return the SHA-256 of the trees of server and clients."""
    return digest([state.server, state.clients])


def independent(state: State) -> State:
    """Return a copy that shares no memory with the state: rounds write clients in place."""
    return replace(
        state,
        server=copied(state.server),
        clients=copied(state.clients),
        participation_count=state.participation_count.clone(),
        steps=state.steps.clone(),
        stale=copied(state.stale),
    )


class States:
    """An experiment, and its states after 0, 1, 2, ... rounds, each computed once.

    Args:
        built: The experiment.

    Attributes:
        built: The experiment.
    """

    def __init__(self, built: assembly.Experiment) -> None:
        self.built = built
        self._known = [independent(built.start())]

    def after(self, number: int) -> State:
        """Return a copy of the state after so many rounds; set-up rounds do not count."""
        while self._known[-1].round < number:
            state = independent(self._known[-1])
            before = state.round
            while state.round == before:
                state, _ = played(self.built, state)
            self._known.append(independent(state))
        return independent(next(state for state in self._known if state.round == number))


def write_npz(path: Path, n: int = 120, classes: int = 4, size: int = 8, **extra: Any) -> Path:
    """Write a data set whose classes are bright squares at different positions.

    Args:
        path: The file.
        n: Number of training samples; there are half as many test samples.
        classes: Number of classes C, at most `size` / 2.
        size: Height and width of the images in pixels.
        extra: Further arrays of the file.

    Returns:
        The file.
    """
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
