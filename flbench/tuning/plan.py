"""The order of a study's trainings.

The next training depends only on the trainings that have ended, not on when or where they ran.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from flbench.results.study_folder import Trial, best_trial
from flbench.tuning.samplers import Observation, Sampler
from flbench.tuning.study import Record, TrainingJob, job_from_record

ENDS: Final = ("finished", "stopped", "diverged", "failed")
FACTOR: Final = 3  # successive halving continues one trial in three


@dataclass(frozen=True)
class Budget:
    """Budget of each method; it is the same for all methods of a study.

    Attributes:
        trials: Number of trials of the search, with the default trial.
        seed: Seed of the search.
        concurrent: Number of trials that a sampler proposes at once if it uses the history.
    """

    trials: int
    seed: int
    concurrent: int


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
        metric: Metric on validation parts that scores a trial.
        deployment: Name of the deployment that scores a trial.
        scheduler: Name of the scheduler: asha, pbt or none.
        rounds: Number of rounds of a complete trial.
        every: Number of rounds between two evaluations.
        seed: Seed of the explore step of population based training.
    """

    metric: str
    deployment: str
    scheduler: str
    rounds: int
    every: int
    seed: int

    @property
    def grace(self) -> int:
        """Rounds before successive halving may stop a trial: a third of all rounds, rounded up to
        an evaluation.

        Methods whose terms need some rounds to take effect are not judged before that.
        """
        return self.every * -(-self.rounds // (FACTOR * self.every))


class StudyPlan:
    """The trials of a study in their order.

    Args:
        samplers: Sampler of each method, which proposes its parameters.
        budget: Budget of each method.
        records: Contents of trial.json of the trials that have begun, if a study is resumed.
    """

    def __init__(
        self, samplers: Mapping[str, Sampler], budget: Budget, records: Iterable[Record] = ()
    ) -> None:
        self._samplers, self._budget = samplers, budget
        self._records = {_name(record): record for record in records}
        self._proposed: dict[str, list[dict[str, Any]]] = {name: [] for name in samplers}
        self._given: set[str] = {
            name for name, record in self._records.items() if record["state"] in ENDS
        }

    def next(self, wanted: Callable[[TrainingJob], bool] = lambda job: True) -> TrainingJob | None:
        """Return the next job that can begin; None while there is none.

        Args:
            wanted: Filter; jobs for which it returns False are left to a later pass.
        """
        for job in self._ready():
            if job.name not in self._given and wanted(job):
                self._given.add(job.name)
                # A resumed trial keeps its parameters: population based training changes them.
                before = self._records.get(job.name)
                return job if before is None else replace(job, params=before["params"])
        return None

    def end(self, record: Record) -> None:
        """Add the record of a trial that has ended."""
        self._records[_name(record)] = record

    def is_over(self, wanted: Callable[[TrainingJob], bool] = lambda job: True) -> bool:
        """Whether every job that passes the filter has ended, including jobs not proposed yet."""
        done = {_name(record) for record in self.ended()}
        for method in self._samplers:
            ahead = TrainingJob(method, self._budget.trials, self._budget.seed, {})
            if len(self._proposals(method)) < self._budget.trials and wanted(ahead):
                return False
        return all(job.name in done for job in self._ready() if wanted(job))

    def ended(self) -> list[Record]:
        """Return the records of the trials that have ended."""
        return [record for record in self._records.values() if record["state"] in ENDS]

    def _ready(self) -> Iterable[TrainingJob]:
        """Yield the jobs that may have begun by now, in order."""
        for method in self._samplers:
            for index, params in enumerate(self._proposals(method)):
                yield TrainingJob(method, index, self._budget.seed, params)

    def _proposals(self, method: str) -> list[dict[str, Any]]:
        """Return the proposals so far, after asking the sampler for those that it can make now."""
        sampler, proposed = self._samplers[method], self._proposed[method]
        batch = sampler.batch(self._budget.concurrent) or self._budget.trials
        while len(proposed) < self._budget.trials:
            history = self._history(method)
            if len(history) < len(proposed):
                break
            count = min(batch, self._budget.trials - len(proposed))
            # A resumed study passes the history that the uninterrupted one had at this point.
            proposed += sampler.propose(history[: len(proposed)], count)
        return proposed

    def _history(self, method: str) -> list[Observation]:
        """Return the results of the first trials, up to the first one that has not ended."""
        history: list[Observation] = []
        for record in self._of(method):
            if record["index"] != len(history):
                break
            values = (record[key] for key in ("params", "state", "score", "round"))
            history.append(Observation(*values))
        return history

    def _of(self, method: str) -> list[Record]:
        """Return the records of a method's ended search trials, in order of their index."""
        records = [record for record in self.ended() if record["method"] == method]
        return sorted(records, key=lambda record: int(record["index"]))


def winner(records: Sequence[Record]) -> Trial | None:
    """Return the best of the trials that have these records; see `best_trial`."""
    names = [field.name for field in fields(Trial)]
    known: list[dict[str, Any]] = [{name: item.get(name) for name in names} for item in records]
    return best_trial([Trial(**item) for item in known])


def _name(record: Record) -> str:
    return job_from_record(record).name
