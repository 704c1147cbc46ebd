"""Search algorithm of Ray Tune that hands out the jobs of a plan and records how trials end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from flbench.tuning.leftovers import remove_checkpoints
from flbench.tuning.plan import ENDS, StudyPlan
from flbench.tuning.study import Record, TrainingJob, now, read_record, save_job, write_record


class JobQueue(Searcher):  # type: ignore[misc]
    """Passes the jobs of a plan to Ray Tune, and records how the trials end.

    Args:
        study: Study folder.
        plan: Plan of the study.
        wanted: Filter for the jobs of this pass.
        on_end: Function that is called with the record of each trial that has ended.
        rounds: Number of rounds of a complete trial.
        is_over: Function that returns whether servers of Ray are lost. Then nothing is recorded of
            a trial that fails, which a resumed study continues.
        keeps_all: Whether the checkpoints of trials that have lost are kept.
    """

    def __init__(
        self,
        study: Path,
        plan: StudyPlan,
        wanted: Callable[[TrainingJob], bool],
        on_end: Callable[[Record], None],
        *,
        rounds: int,
        is_over: Callable[[], bool],
        keeps_all: bool = False,
    ) -> None:
        super().__init__()
        self._keeps_all = keeps_all
        self._study, self._plan, self._wanted, self._on_end = study, plan, wanted, on_end
        self._rounds, self._is_over = rounds, is_over
        self._attempts: dict[str, int] = {}
        self.jobs: dict[str, TrainingJob] = {}  # by Ray Tune's trial id

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of the next trial; None while other trials must end first."""
        job = self._plan.next(self._wanted)
        if job is None:
            return str(Searcher.FINISHED) if self._plan.is_over(self._wanted) else None
        before = read_record(self._study, job)
        # Resuming a study does not count as another attempt of its trials.
        self._attempts[trial_id] = 1 if before is None else before["attempts"]
        self.jobs[trial_id] = job
        save_job(self._study, trial_id, job)
        return {"params": dict(job.params)}

    def count_retry(self, trial_id: str) -> None:
        """Count another attempt of a trial whose worker failed."""
        self._attempts[trial_id] += 1

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended: as its worker wrote, or that it was stopped or failed."""
        if error and self._is_over():
            return
        reason = "its worker failed." if error else "stopped by the scheduler."
        self._end(trial_id, "failed" if error else "stopped", reason)
        if not error:
            self._on_end(self._record(trial_id))

    def record_reason(self, trial_id: str, reason: str) -> None:
        """Record why a trial failed. Ray Tune reports the reason after the trial has ended."""
        if self._is_over():
            return
        record = self._record(trial_id)
        if record["state"] == "failed":
            record |= {"reason": reason}
            write_record(self._study, self.jobs[trial_id], record)
            self._plan.end(record)
        self._on_end(record)

    def _end(self, trial_id: str, state: str, reason: str) -> None:
        """Write the record of an ended trial; state and reason of its worker take precedence."""
        record = self._record(trial_id) | {"attempts": self._attempts[trial_id]}
        if record["state"] not in ENDS:
            lost = state == "failed"
            record |= {"state": state, "reason": reason, "ended": now(), "lost": lost}
        write_record(self._study, self.jobs[trial_id], record)
        self._plan.end(record)
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove the checkpoints of trials that have lost, unless all are kept."""
        if not self._keeps_all:
            remove_checkpoints(self._study, self._plan.ended())

    def _record(self, trial_id: str) -> Record:
        job = self.jobs[trial_id]
        return read_record(self._study, job) or job.record(self._rounds)

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: the study folder has all that a resumed study needs."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study folder has all that a resumed study needs."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing; see `save`."""
