"""Who goes on: successive halving within each method, and population based training."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.schedulers.trial_scheduler import TrialScheduler

from flbench.tuning.study import Job

FACTOR: Final = 3  # of successive halving: one trial in three goes on
QUANTILE: Final = 0.25  # of a population that takes up another's state, or gives its own


@dataclass(frozen=True)
class Named:
    """All that successive halving asks of a trial; the same before and after a resume."""

    trial_id: str


@dataclass(frozen=True)
class Seen:
    """A score that a trial had before the study was resumed."""

    job: Job
    round: int
    score: float


class HalvingByMethod(FIFOScheduler):  # type: ignore[misc]
    """Asynchronous successive halving (ASHA), each method by itself.

    Trials of one method would otherwise be stopped because another method is better. The default
    parameters and the finals always run to the end.

    Args:
        jobs: by Ray Tune's trial id.
        rounds: of a whole trial.
        grace: rounds that every trial gets; a multiple of the rounds between two evaluations.
        seen: of a study that is resumed, in the order of trials and rounds.
    """

    def __init__(
        self, jobs: Mapping[str, Job], *, rounds: int, grace: int, seen: Iterable[Seen] = ()
    ) -> None:
        super().__init__()
        self._jobs, self._rounds, self._grace = jobs, rounds, grace
        self._halving: dict[str, Any] = {}
        self._known: set[str] = set()
        # The driver may have died between a score and the decision that it led to.
        self._fallen = {
            item.job.name
            for item in seen
            if item.job.kind == "search"
            and self._evaluate(item.job, item.round, item.score) == TrialScheduler.STOP
        }

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Stop a trial that is not among the best third at a rung."""
        job = self._jobs[trial.trial_id]
        if job.kind == "final":
            return str(TrialScheduler.CONTINUE)
        decision = self._evaluate(job, result["round"], result["score"])
        if job.name in self._fallen:
            decision = str(TrialScheduler.STOP)
        whole = job.index == 0 or result["round"] >= self._rounds
        return str(TrialScheduler.CONTINUE) if whole else decision

    def _evaluate(self, job: Job, done: int, score: float) -> str:
        halving = self._halving.get(job.method)
        if halving is None:
            halving = self._halving[job.method] = AsyncHyperBandScheduler(
                time_attr="round",
                metric="score",
                mode="max",
                max_t=max(self._rounds, self._grace),
                grace_period=self._grace,
                reduction_factor=FACTOR,
            )
        trial = Named(job.name)
        if job.name not in self._known:
            self._known.add(job.name)
            halving.on_trial_add(None, trial)
        return str(halving.on_trial_result(None, trial, {"round": done, "score": score}))


class Population(PopulationBasedTraining):  # type: ignore[misc]
    """Population based training over trials that a Queue hands out."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take in a trial.

        Ray refuses search algorithms here, as exchanges would spoil what they learn from scores; a
        Queue's proposals do not look at scores.
        """
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)


def population(
    every: int, explore: Callable[[dict[str, Any], np.random.Generator], dict[str, Any]], seed: int
) -> Population:
    """Return population based training over the trials of one method.

    Every `every` rounds, trials of the worst quarter take up the state and the parameters of one of
    the best quarter, and explore from there. Not reproducible: it goes by the clock.

    Args:
        every: rounds between two exchanges.
        explore: returns other parameters near those given.
        seed: of what is explored.
    """
    rng = np.random.default_rng(seed)

    def explored(config: dict[str, Any]) -> dict[str, Any]:
        return config | {"params": explore(dict(config["params"]), rng)}

    return Population(
        time_attr="round",
        metric="score",
        mode="max",
        perturbation_interval=every,
        quantile_fraction=QUANTILE,
        custom_explore_fn=explored,
        log_config=False,
    )
