"""Callbacks of Ray Tune: they update the progress table and the job queue."""

import re
from pathlib import Path
from typing import Any

import ray
from ray import tune

from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.queue import JobQueue
from flbench.tuning.waits import Waits
from flbench.workers import ray_session
from flbench.workers.actor_pool import OUT_OF_MEMORY, why_lost


class StudyStopped(BaseException):
    """Ends Ray Tune's loop. After an Exception, Ray Tune would call its servers first."""


class TuneCallbacks(tune.Callback):  # type: ignore[misc]
    """Reports the events of Ray Tune to the progress table and to the job queue.

    Args:
        queue: Queue that hands out the trials.
        progress: Progress table of the study.
        waits: Watches over the trials that do not run.

    Attributes:
        begins_again: Whether the loop was stopped so that the trials begin again on other nodes.
    """

    def __init__(self, queue: JobQueue, progress: ProgressTable, waits: Waits) -> None:
        self._queue, self._progress, self._waits = queue, progress, waits
        self.begins_again = False

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: Ray Tune's snapshots are not used to resume a study."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise StudyStopped if the trials wait for what is not there."""
        waiting, running = (
            [self._queue.jobs[trial.trial_id].name for trial in trials if trial.status == status]
            for status in ("PENDING", "RUNNING")
        )
        if (note := self._waits.must_begin_again(waiting, running)) is not None:
            self._progress.note(note)
            self.begins_again = True
            raise StudyStopped
        if (reason := self._waits.look(waiting, running)) is not None:
            raise StudyStopped(reason)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Update the rounds that the trial has done."""
        self._progress.update(self._queue.jobs[trial.trial_id], result["round"])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count another attempt of a trial whose worker failed, and print a note."""
        if ray_session.are_lost():  # the worker was ended for this reason
            return
        self._queue.count_retry(trial.trial_id)
        job = self._queue.jobs[trial.trial_id]
        self._progress.interrupt(job)
        self._progress.note(
            f"{job.name} failed ({_reason(trial)}), and resumes from its checkpoint."
        )

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record why a trial failed for the last time."""
        self._queue.record_reason(trial.trial_id, _reason(trial))


def _reason(trial: Any) -> str:
    """Return one line with the error of a trial's last failure."""
    try:
        # Ray Tune's accessor reads a copy of this file that is written later.
        with Path(trial.pickled_error_file).open("rb") as file:
            error = ray.cloudpickle.load(file)
    except (OSError, TypeError):  # no file, or no path of one
        return _reason_in_text(trial)
    is_loss = isinstance(error, ray.exceptions.RayError)
    if is_loss and not isinstance(error, ray.exceptions.RayTaskError):
        return why_lost(error)
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"


def _reason_in_text(trial: Any) -> str:
    """Return one line with the last failure, of which Ray Tune has written the text alone.

    It pickles the errors of actors and of their tasks, and no others, such as those of its memory
    monitor.
    """
    try:
        text = Path(trial.error_file).read_text("utf-8", "replace")
    except (OSError, TypeError):
        return "Ray Tune gives no reason."
    last = re.split(r"^Failure # .*$", text, flags=re.MULTILINE)[-1].strip()
    if OUT_OF_MEMORY in last:
        return why_lost(ray.exceptions.OutOfMemoryError(last))
    return last.splitlines()[0].strip() if last else "Ray Tune gives no reason."
