"""What a study will train and what it will cost, estimated before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from flbench.experiment.estimate import START, WORKERS
from flbench.jobs import estimate
from flbench.jobs.job import Job
from flbench.jobs.repetitions import Vary
from flbench.reports.shown import size
from flbench.reports.terminal import duration
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.request import FACTOR, grace_of

SHARES: Final = ("epochs", "batch_size", "participation", "rounds")
"""Ends of keys that change what a round costs."""


@dataclass(frozen=True)
class StudyCost:
    """What a study trains, and its estimated time and memory.

    Attributes:
        methods: Names of the methods.
        trials: Trials of each method.
        rounds: Rounds of a complete trial, and of a final training.
        seeds: Final trainings of the default and of the best parameters of each method.
        concurrent: Trainings at once.
        grace: Rounds before ASHA may stop a trial; None with another scheduler.
        seconds: Estimated seconds of a complete training with default parameters, by method. A
            method that was not measured has the mean of the others.
        measured: Names of the methods that were measured.
        memory: Estimated bytes of the process of one training.
        engine: Name of the engine of the trials.
        varying: Searched keys that change what a round costs.
        vary: What differs between final trainings, see `TuneRequest`.
    """

    methods: tuple[str, ...]
    trials: int
    rounds: int
    seeds: int
    concurrent: int
    grace: int | None
    seconds: Mapping[str, float]
    measured: tuple[str, ...]
    memory: int
    engine: str
    varying: tuple[str, ...]
    vary: Vary = "training"

    @property
    def search(self) -> int:
        """Number of trials of all methods."""
        return len(self.methods) * self.trials

    @property
    def finals(self) -> tuple[int, int]:
        """Smallest and largest number of final trainings.

        The smallest one is that of a study in which the default parameters win for all methods.
        """
        least = len(self.methods) * self.seeds
        return least, 2 * least

    @property
    def total(self) -> tuple[float, float]:
        """Smallest and largest estimated number of seconds of the whole study."""
        ends = []
        for share, finals in zip((self.share, 1.0), (self.seeds, 2 * self.seeds), strict=True):
            each = [
                self.trials * (START + share * (seconds - START)) + finals * seconds
                for seconds in self.seconds.values()
            ]
            # Final trainings of tuned parameters begin after the search of their method.
            ends.append(WORKERS + max(sum(each) / self.concurrent, *self.seconds.values()))
        return ends[0], ends[1]

    @property
    def share(self) -> float:
        """Smallest share of the search's rounds that ASHA leaves: one third continues at each rung.

        >>> plan = StudyCost(("a",), 9, 90, 0, 1, 10, {"a": 1.0}, ("a",), 0, "sequential", ())
        >>> plan.share  # 9 trials to round 10, 3 to round 30, 1 to round 90, of 9 to round 90
        0.25925925925925924
        """
        if self.grace is None or self.grace >= self.rounds:
            return 1.0
        done, before, rung, left = 0.0, 0, self.grace, float(self.trials)
        while before < self.rounds:
            upto = min(rung, self.rounds)
            done += max(1.0, left) * (upto - before)
            before, rung, left = upto, rung * FACTOR, left / FACTOR
        return min(1.0, done / (self.trials * self.rounds))

    def tree(self) -> dict[str, Any]:
        """Return the plan and the estimates as values of JSON."""
        return {
            "methods": list(self.methods),
            "trials": self.trials,
            "rounds": self.rounds,
            "seeds": self.seeds,
            "vary": self.vary,
            "trainings": {"search": self.search, "finals": list(self.finals)},
            "concurrent": self.concurrent,
            "asha_stops_from_round": self.grace,
            "seconds": {
                "training": dict(self.seconds),
                "measured": list(self.measured),
                "total": list(self.total),
            },
            "memory": {"training": self.memory, "total": self.memory * self.concurrent},
        }

    def sentences(self) -> list[str]:
        """Return the plan and the estimates as sentences for the user."""
        names = ", ".join(self.methods)
        least, most = self.finals
        sentences = [
            f"plan: {self.trials} trials for each of {names} ({self.search} trainings of at most"
            f" {self.rounds} rounds)"
            + (
                f", then the default and the best parameters with {self.seeds} seeds"
                f"{'' if self.vary == 'training' else ' and partitions'} each ({least} to {most}"
                f" final trainings of {self.rounds} rounds)."
                if self.seeds
                else ", and no final trainings."
            )
        ]
        if self.share < 1:
            sentences.append(
                f"plan: ASHA may stop a trial from round {self.grace} on, and leaves at least"
                f" {self.share:.0%} of the search's rounds; default parameters are trained to the"
                " end."
            )
        low, high = self.total
        each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.seconds.items())
        sentences.append(
            f"cost: about {_between(low, high)} with {self.concurrent} trainings at once, and"
            f" {size(self.memory * self.concurrent)} of memory. A complete training with default"
            f" parameters takes: {each}."
        )
        others = [name for name in self.methods if name not in self.measured]
        if others:
            sentences.append(f"cost: {', '.join(others)} not measured; the mean is assumed.")
        if self.varying:
            sentences.append(
                f"cost: the search varies {', '.join(self.varying)}, which changes these times."
            )
        if self.engine == "ray":
            sentences.append(
                "cost: the times are those of engine.name=sequential; engine.name=ray may be"
                " faster."
            )
        return sentences


def measure(prepared: PreparedStudy) -> StudyCost:
    """Estimate the cost of a study from a few training steps of each method.

    See `jobs.estimate.measure`.

    Args:
        prepared: The study.
    """
    request, config = prepared.request, prepared.config
    jobs = [Job(name, name, "", "", 0, mine, {}) for name, mine in prepared.configs.items()]
    found = estimate.measure(jobs, jobs, lambda job: prepared.federation, prepared.resources)
    measured = {name: one for name, one in found.seconds.items() if one is not None}
    mean = fmean(measured.values()) if measured else START
    varying = {key for space in prepared.spaces.values() for key in space.parameters}
    return StudyCost(
        methods=request.methods,
        trials=request.trials,
        rounds=config.train.rounds,
        seeds=request.seeds,
        concurrent=prepared.resources.concurrent,
        grace=grace_of(config.train.rounds, config.evaluation_period)
        if request.scheduler == "asha"
        else None,
        seconds={method: measured.get(method, mean) for method in request.methods},
        measured=tuple(measured),
        memory=found.memory,
        engine=prepared.resources.engine.name,
        varying=tuple(sorted(key for key in varying if key.endswith(SHARES))),
        vary=request.vary,
    )


def _between(low: float, high: float) -> str:
    """Return a range of seconds as text."""
    least, most = duration(low), duration(high)
    return least if least == most else f"{least} to {most}"
