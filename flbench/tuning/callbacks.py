"""What Ray Tune tells of trials, for the board and for the queue."""

from pathlib import Path
from typing import Any

import ray
from ray import tune

from flbench.tuning.progress_table import Board
from flbench.tuning.queue import Queue


class Watch(tune.Callback):  # type: ignore[misc]
    """Tells the board what Ray Tune knows."""

    def __init__(self, queue: Queue, board: Board) -> None:
        self._queue, self._board = queue, board

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing for Ray Tune's own snapshots."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._board.progress(self._queue.jobs[trial.trial_id], result["round"])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._queue.retried(trial.trial_id)
        job = self._queue.jobs[trial.trial_id]
        self._board.say(f"{job.name} failed ({_reason(trial)}), and goes on from its checkpoint.")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._queue.explain(trial.trial_id, _reason(trial))


def _reason(trial: Any) -> str:
    """Return one line on why a trial failed last."""
    try:
        # Its own accessor reads the study's copy of this file, which comes later.
        with Path(trial.pickled_error_file).open("rb") as file:
            error = ray.cloudpickle.load(file)
    except OSError:
        return "Ray Tune does not say why."
    if isinstance(error, ray.exceptions.RayActorError):
        return "its worker died: it was killed, or memory is short."
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
