"""Schedulers decide which trials continue: successive halving and population based training."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.schedulers.trial_scheduler import TrialScheduler

from flbench.tuning.plan import FACTOR
from flbench.tuning.study import TrainingJob

QUANTILE: Final = 0.25  # share of a population that copies states, and share that is copied


@dataclass(frozen=True)
class TrialHandle:
    """What Ray's successive halving knows of a trial: an id that is the same after a resume."""

    trial_id: str


@dataclass(frozen=True)
class EarlierScore:
    """A score that a trial had before the study was resumed.

    Attributes:
        job: Job of the trial.
        round: Round of the evaluation.
        score: Score at this round.
    """

    job: TrainingJob
    round: int
    score: float


class HalvingByMethod(FIFOScheduler):  # type: ignore[misc]
    """Asynchronous successive halving (ASHA), separately for each method.

    If methods shared one instance, trials of one method would be stopped because another method is
    better. The default trial always runs to the end.

    Args:
        jobs: Jobs by Ray Tune's trial id.
        rounds: Number of rounds of a complete trial.
        grace: Number of rounds before a trial can be stopped; a multiple of the number of rounds
            between two evaluations.
        seen: Earlier scores of a resumed study, in the order of trials and rounds.
    """

    def __init__(
        self,
        jobs: Mapping[str, TrainingJob],
        *,
        rounds: int,
        grace: int,
        seen: Iterable[EarlierScore] = (),
    ) -> None:
        super().__init__()
        self._jobs, self._rounds, self._grace = jobs, rounds, grace
        self._halving: dict[str, Any] = {}
        self._known: set[str] = set()
        # The driver may have died after a score was written and before its trial was stopped.
        self._stopped_before = {
            item.job.name
            for item in seen
            if self._decide(item.job, item.round, item.score) == TrialScheduler.STOP
        }

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Stop a trial that is not among the best third at a rung."""
        job = self._jobs[trial.trial_id]
        decision = self._decide(job, result["round"], result["score"])
        if job.name in self._stopped_before:
            decision = str(TrialScheduler.STOP)
        never_stopped = job.index == 0 or result["round"] >= self._rounds
        return str(TrialScheduler.CONTINUE) if never_stopped else decision

    def _decide(self, job: TrainingJob, done: int, score: float) -> str:
        """Return the decision of successive halving for a score after `done` rounds."""
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
        trial = TrialHandle(job.name)
        if job.name not in self._known:
            self._known.add(job.name)
            halving.on_trial_add(None, trial)
        return str(halving.on_trial_result(None, trial, {"round": done, "score": score}))


class Population(PopulationBasedTraining):  # type: ignore[misc]
    """Population based training over trials that a JobQueue hands out."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial.

        Ray rejects search algorithms here, because exchanges change the scores that they use. A
        JobQueue's proposals do not look at scores.
        """
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)


def population(
    every: int, explore: Callable[[dict[str, Any], np.random.Generator], dict[str, Any]], seed: int
) -> Population:
    """Return a scheduler for population based training over the trials of one method.

    Every `every` rounds, a trial of the worst quarter copies the state and the parameters of a
    trial of the best quarter, and continues with parameters near them. The result is not
    reproducible: it depends on the order in which trials report their scores.

    Args:
        every: Number of rounds between two exchanges.
        explore: Function of parameters and a random generator that returns parameters near them.
        seed: Seed of the random generator.
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
