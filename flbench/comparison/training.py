"""Trains one cell of a comparison in its run folder, from the beginning or from its checkpoint."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flbench.callbacks import Callback, RunView
from flbench.comparison.samples import PartitionFiles
from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from flbench.core.errors import RunError, UserError
from flbench.core.expected import as_flbench_errors
from flbench.data.federation import Federation
from flbench.experiment import lifecycle
from flbench.experiment.lifecycle import Supplied


@dataclass(frozen=True)
class Task:
    """A cell, as it is sent to the process that trains it.

    Attributes:
        path: Run folder of the cell.
        layer: Its whole configuration. The class of a configuration depends on method and net, so
            that a configuration itself cannot be sent.
        changed: New values of keys that may change when a cell is resumed.
        how_to_resume: What the user calls to resume the comparison.
    """

    path: Path
    layer: Layer
    changed: Layer
    how_to_resume: str


@dataclass(frozen=True)
class Outcome:
    """How the training of a cell ended.

    Attributes:
        reason: Why it failed; None if it is finished.
        notes: Sentences for the user.
        seconds: Seconds that it took.
    """

    reason: str | None
    notes: tuple[str, ...]
    seconds: float


def train(task: Task, federation: Federation, partition: PartitionFiles) -> Outcome:
    """Train a cell, or what is left of it.

    Args:
        task: The cell.
        federation: The samples of its clients.
        partition: Content of its partition.npz and partition.json.

    Returns:
        How it ended. An error of the cell is returned, not raised: the other cells go on.

    Raises:
        KeyboardInterrupt: A stop signal has arrived; the cell is saved.
    """
    begin = time.monotonic()
    notes = _Notes()
    reason = None
    try:
        with as_flbench_errors(), warnings.catch_warnings():
            warnings.showwarning = notes.warn
            if (task.path / "config.yaml").is_file():
                lifecycle.resume(
                    task.path,
                    task.changed,
                    [notes],
                    how_to_resume=lambda _: task.how_to_resume,
                    federation=federation,
                )
            else:
                config, origins = resolve([task.layer, task.changed])
                lifecycle.run(
                    config,
                    origins,
                    [notes],
                    how_to_resume=lambda _: task.how_to_resume,
                    supplied=Supplied(task.path, federation, partition),
                )
    except (UserError, RunError) as error:
        reason = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001  # an own net or loss of the user may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Outcome(reason, tuple(notes.sentences), time.monotonic() - begin)


class _Notes(Callback):
    """Keeps the notes of a run, and Python's warnings, from its first round on.

    Those before are about configuration and data, and were printed with the plan.
    """

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self._has_begun = False

    def on_run_start(self, run: RunView) -> None:
        self._has_begun = True

    def on_note(self, text: str) -> None:
        if self._has_begun:
            self.sentences.append(text)

    def warn(self, message: object, *_: Any, **__: Any) -> None:
        """Keep a warning of Python as a note."""
        self.on_note(str(message))


def layer_of(tree: dict[str, Any], origins: Mapping[str, str]) -> Layer:
    """Return a whole configuration as one layer, without the origins of defaults."""
    return Layer(tree, {key: place for key, place in origins.items() if place != "default"})
