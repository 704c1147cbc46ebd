"""The plan as Ray Tune's search algorithm: it is asked for trials and told how they ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from flbench.tuning.plan import ENDS, Plan
from flbench.tuning.study import Job, Record, name_trial, now, read_record, write_record


class Queue(Searcher):  # type: ignore[misc]
    """Hands out the jobs of a plan.

    Args:
        study: the study folder.
        plan: of the study.
        wanted: the jobs of this pass.
        told: is given the record of each trial that has ended.
        rounds: of a whole trial.
    """

    def __init__(
        self,
        study: Path,
        plan: Plan,
        wanted: Callable[[Job], bool],
        told: Callable[[Record], None],
        *,
        rounds: int,
    ) -> None:
        super().__init__()
        self._study, self._plan, self._wanted, self._told = study, plan, wanted, told
        self._rounds = rounds
        self._attempts: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}  # by Ray Tune's id

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config; None while others must end first."""
        job = self._plan.next(self._wanted)
        if job is None:
            return str(Searcher.FINISHED) if self._plan.is_over(self._wanted) else None
        before = read_record(self._study, job)
        # A study that is resumed is no failure of its trials.
        self._attempts[trial_id] = 1 if before is None else before["attempts"]
        self.jobs[trial_id] = job
        name_trial(self._study, trial_id, job)
        return {"params": dict(job.params)}

    def retried(self, trial_id: str) -> None:
        """Count that a trial's worker failed, and that it goes on in another one."""
        self._attempts[trial_id] += 1

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note how a trial ended: what its worker wrote, or that it was stopped or failed."""
        reason = "its worker failed." if error else "stopped by the scheduler."
        self._end(trial_id, "failed" if error else "stopped", reason)
        if not error:
            self._told(self._record(trial_id))

    def explain(self, trial_id: str, reason: str) -> None:
        """Write why a trial failed, which Ray Tune says after it has ended."""
        record = self._record(trial_id)
        if record["state"] == "failed":
            record |= {"reason": reason}
            write_record(self._study, self.jobs[trial_id], record)
            self._plan.end(record)
        self._told(record)

    def _end(self, trial_id: str, state: str, reason: str) -> None:
        record = self._record(trial_id) | {"attempts": self._attempts[trial_id]}
        if record["state"] not in ENDS:
            record |= {"state": state, "reason": reason, "ended": now()}
        write_record(self._study, self.jobs[trial_id], record)
        self._plan.end(record)

    def _record(self, trial_id: str) -> Record:
        job = self.jobs[trial_id]
        return read_record(self._study, job) or job.record(self._rounds)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing for Ray Tune's own snapshots: the study folder says all."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study folder says all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing; see `save`."""
