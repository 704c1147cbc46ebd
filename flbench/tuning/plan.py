"""Which training comes next; it follows from what has ended, not from when or where."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from flbench.results.study_folder import Trial, best_trial
from flbench.tuning.samplers import Observation, Sampler
from flbench.tuning.study import Job, Record, job_of

ENDS: Final = ("finished", "stopped", "diverged", "failed")


@dataclass(frozen=True)
class Budget:
    """What each method may spend; equal for all of a study.

    Attributes:
        trials: of the search, the default parameters' among them.
        seeds: finals of the default and of the tuned parameters each.
        seed: of the search; finals take the seeds after it.
        concurrent: trials that a sampler which looks at the history proposes at once.
    """

    trials: int
    seeds: int
    seed: int
    concurrent: int


class Plan:
    """The jobs of a study in their order: every method's trials, then its finals.

    Args:
        samplers: propose parameters, by method.
        budget: of each method.
        records: trial.json of the trials that have begun, in a study that is resumed.
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

    def next(self, wanted: Callable[[Job], bool] = lambda job: True) -> Job | None:
        """Return the next job; None while there is none to begin.

        Args:
            wanted: leaves jobs to a later pass.
        """
        for job in self._ready():
            if job.name not in self._given and wanted(job):
                self._given.add(job.name)
                # A trial that had begun goes on with the parameters that it had by then.
                before = self._records.get(job.name)
                return job if before is None else replace(job, params=before["params"])
        return None

    def end(self, record: Record) -> None:
        """Take note of a trial that has ended."""
        self._records[_name(record)] = record

    def is_over(self, wanted: Callable[[Job], bool] = lambda job: True) -> bool:
        """Return whether every wanted job has ended, those too that are not known yet."""
        done = {_name(record) for record in self.ended()}
        for method in self._samplers:
            ahead = []
            if len(self._proposals(method)) < self._budget.trials:
                ahead.append(Job(method, "search", self._budget.trials, self._budget.seed, {}))
            if not self._searched(method):
                ahead.append(Job(method, "final", 0, self._budget.seed + 1, {}, "tuned"))
            if any(wanted(job) for job in ahead):
                return False
        return all(job.name in done for job in self._ready() if wanted(job))

    def ended(self) -> list[Record]:
        """Return the records of the trials that have ended."""
        return [record for record in self._records.values() if record["state"] in ENDS]

    def _ready(self) -> Iterable[Job]:
        """Yield the jobs that may begin by now, in order."""
        for method in self._samplers:
            for index, params in enumerate(self._proposals(method)):
                yield Job(method, "search", index, self._budget.seed, params)
        for method in self._samplers:
            yield from self._finals(method)

    def _proposals(self, method: str) -> list[dict[str, Any]]:
        """Return the proposals so far; ask for more where the sampler may give them."""
        sampler, found = self._samplers[method], self._proposed[method]
        batch = sampler.batch(self._budget.concurrent) or self._budget.trials
        while len(found) < self._budget.trials:
            history = self._history(method)
            if len(history) < len(found):
                break
            count = min(batch, self._budget.trials - len(found))
            # Of a resumed study, what the straight one knew when it proposed these.
            found += sampler.propose(history[: len(found)], count)
        return found

    def _history(self, method: str) -> list[Observation]:
        """Return what the first trials found, up to the first that has not ended."""
        history: list[Observation] = []
        for record in self._of(method):
            if record["index"] != len(history):
                break
            found = (record[key] for key in ("params", "state", "score", "round"))
            history.append(Observation(*found))
        return history

    def _finals(self, method: str) -> Iterable[Job]:
        if not self._searched(method):
            return
        won = winner(self._of(method))
        if won is None:
            return
        default = self._proposals(method)[0]
        for k in range(1, self._budget.seeds + 1):
            seed = self._budget.seed + k
            yield Job(method, "final", 0, seed, default, "default")
            if won.index:  # where the defaults won, their finals are the tuned ones
                yield Job(method, "final", won.index, seed, won.params, "tuned")

    def _searched(self, method: str) -> bool:
        return len(self._of(method)) == self._budget.trials

    def _of(self, method: str) -> list[Record]:
        """Return the search trials of a method that have ended, by index."""
        found = [
            record
            for record in self.ended()
            if record["method"] == method and record["kind"] == "search"
        ]
        return sorted(found, key=lambda record: int(record["index"]))


def winner(records: Sequence[Record]) -> Trial | None:
    """Return the trial that the finals train again; see `best_trial`."""
    names = [field.name for field in fields(Trial)]
    known: list[dict[str, Any]] = [{name: item.get(name) for name in names} for item in records]
    return best_trial([Trial(**item) for item in known])


def _name(record: Record) -> str:
    return job_of(record).name
