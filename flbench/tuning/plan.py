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
        seeds: Number of final trainings of the default parameters, and of the tuned parameters.
        seed: Seed of the search. Final trainings use the seeds that follow it.
        concurrent: Number of trials that a sampler proposes at once if it uses the history.
        partition_seed: Seed of the partition of the search, if final trainings have the partitions
            of the seeds that follow it; None if they have that of the search.
    """

    trials: int
    seeds: int
    seed: int
    concurrent: int
    partition_seed: int | None = None


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
    """The jobs of a study in their order: first the trials, then the final trainings.

    Final trainings with default parameters may begin while the last trials are trained.

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
            ahead = []
            if len(self._proposals(method)) < self._budget.trials:
                ahead.append(
                    TrainingJob(method, "search", self._budget.trials, self._budget.seed, {})
                )
            if not self._searched(method):
                ahead.append(TrainingJob(method, "final", 0, self._budget.seed + 1, {}, "tuned"))
            if any(wanted(job) for job in ahead):
                return False
        return all(job.name in done for job in self._ready() if wanted(job))

    def ended(self) -> list[Record]:
        """Return the records of the trials that have ended."""
        return [record for record in self._records.values() if record["state"] in ENDS]

    def _ready(self) -> Iterable[TrainingJob]:
        """Yield the jobs that may have begun by now, in order."""
        for method in self._samplers:
            for index, params in enumerate(self._proposals(method)):
                yield TrainingJob(method, "search", index, self._budget.seed, params)
        for method in self._samplers:
            yield from self._finals(method)

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

    def _finals(self, method: str) -> Iterable[TrainingJob]:
        """Yield the final trainings of a method that may begin by now.

        Those with default parameters need the default trial alone. They begin when the trials of
        all methods have begun, so that no worker is idle while the last ones are trained. Those
        with the winner's parameters begin when the method's search has ended.
        """
        records = self._of(method)
        won = winner(records) if self._searched(method) else None
        is_early = self._all_proposed() and any(map(_is_finished_default, records))
        if won is None and not is_early:
            return
        default, first = self._proposals(method)[0], self._budget.partition_seed
        for k in range(1, self._budget.seeds + 1):
            seed, partition = self._budget.seed + k, None if first is None else first + k
            yield TrainingJob(method, "final", 0, seed, default, "default", partition)
            # If the default trial won, its final trainings are the tuned ones too.
            if won is not None and won.index:
                yield TrainingJob(method, "final", won.index, seed, won.params, "tuned", partition)

    def _all_proposed(self) -> bool:
        """Whether the trials of all searches are known; a sampler may wait for results."""
        return all(len(self._proposals(method)) == self._budget.trials for method in self._samplers)

    def _searched(self, method: str) -> bool:
        """Whether all trials of a method's search have ended."""
        return len(self._of(method)) == self._budget.trials

    def _of(self, method: str) -> list[Record]:
        """Return the records of a method's ended search trials, in order of their index."""
        records = [
            record
            for record in self.ended()
            if record["method"] == method and record["kind"] == "search"
        ]
        return sorted(records, key=lambda record: int(record["index"]))


def winner(records: Sequence[Record]) -> Trial | None:
    """Return the trial whose parameters the final trainings use; see `best_trial`."""
    names = [field.name for field in fields(Trial)]
    known: list[dict[str, Any]] = [{name: item.get(name) for name in names} for item in records]
    return best_trial([Trial(**item) for item in known])


def _is_finished_default(record: Record) -> bool:
    """Return whether a trial of a search has trained the default parameters to the end."""
    is_scored = record["score"] is not None
    return bool(record["index"] == 0 and record["state"] == "finished" and is_scored)


def _name(record: Record) -> str:
    return job_from_record(record).name
