"""Trains one job in its run folder, from the beginning or from its checkpoint."""

import time
import warnings
from dataclasses import replace
from pathlib import Path

from flbench.callbacks import Callback, RunView
from flbench.config.resolve import resolve
from flbench.core.errors import RunError, UserError
from flbench.core.system_errors import as_flbench_errors
from flbench.core.user_code_errors import note_of
from flbench.data.federation import Federation
from flbench.experiment import lifecycle
from flbench.experiment.lifecycle import Supplied
from flbench.experiment.predictions import PARTS
from flbench.experiment.run_folder import RunFolder
from flbench.jobs.job import Outcome, Task
from flbench.jobs.samples import PartitionFiles


def train(task: Task, federation: Federation, partition: PartitionFiles) -> Outcome:
    """Train a job, or what is left of it.

    Returns:
        How it ended. An error of the job is returned, not raised: the other jobs go on.

    Raises:
        KeyboardInterrupt: A stop signal has arrived; the job is saved.
    """
    begin = time.monotonic()
    listener = _Notes()
    outcome = Outcome(None)
    try:
        with as_flbench_errors(), warnings.catch_warnings():
            warnings.showwarning = lambda message, _, file, line, *__: listener.on_note(
                note_of(message, file, line)
            )
            run_or_resume(task, federation, partition, listener)
    except UserError as error:
        outcome = Outcome.refused(error)
    except RunError as error:
        outcome = Outcome(" ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001  # an own net or loss of the user may raise anything
        outcome = Outcome(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return replace(outcome, notes=tuple(listener.sentences), seconds=time.monotonic() - begin)


def run_or_resume(
    task: Task,
    federation: Federation,
    partition: PartitionFiles,
    listener: Callback,
    parts: tuple[str, ...] = PARTS,
) -> None:
    """Resume the run in the folder of a job; begin it if there is none; see `lifecycle.run`."""

    def how_to_resume(path: Path) -> str:
        return task.how_to_resume or RunFolder.command_to_resume(path)

    if task.path is not None and (task.path / "config.yaml").is_file():
        lifecycle.resume(
            task.path,
            task.changed,
            [listener],
            how_to_resume=how_to_resume,
            federation=federation,
            parts=parts,
        )
        return
    config, origins = resolve([task.layer, task.changed])
    lifecycle.run(
        config,
        origins,
        [listener],
        how_to_resume=how_to_resume,
        supplied=Supplied(task.path, federation, partition),
        parts=parts,
    )


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
        if self._has_begun and text not in self.sentences:
            self.sentences.append(text)
