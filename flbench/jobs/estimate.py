"""Seconds and memory of many trainings, estimated before the first of them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from flbench.core.errors import MethodError, RunError
from flbench.data.federation import Federation
from flbench.experiment import assembly, estimate, own_methods
from flbench.experiment.engines import on_this_machine
from flbench.experiment.estimate import PROCESSES, REPORT, WORKERS
from flbench.jobs.job import Job
from flbench.jobs.resources import Resources
from flbench.reports.shown import size
from flbench.reports.terminal import duration


class Plan(NamedTuple):
    """What a campaign trains, and its estimated time and memory: for JSON, and in sentences."""

    tree: dict[str, Any]
    sentences: list[str]


@dataclass(frozen=True)
class Estimate:
    """Estimated time and memory of jobs.

    Attributes:
        kind: What a job is called, such as `cell`.
        at_once: Number of jobs at the same time.
        seconds: Seconds of a job by method, the mean over the places; None for a method that could
            not be measured.
        memory: Bytes of the process of one job, the largest of those that were measured.
        steps: Optimizer steps of a job by method, in its first place.
        each: Seconds of a job by method and place.
        start: Seconds until processes begin to train.
        total: Seconds of all jobs and of their report, without methods that were not measured.
    """

    kind: str
    at_once: int
    seconds: Mapping[str, float | None]
    memory: int
    steps: Mapping[str, int]
    each: Mapping[tuple[str, str], float]
    start: float
    total: float = REPORT

    def of(self, left: Iterable[tuple[tuple[str, str], float]]) -> "Estimate":
        """Return the estimate of jobs: method and place of each, and the share of its rounds."""
        each = [share * self.each.get(job, 0.0) for job, share in left]
        trained = self.start + max(sum(each) / self.at_once, *each) if each else 0.0
        return replace(self, total=trained + REPORT)

    def tree(self) -> dict[str, Any]:
        """Return the estimate as values of JSON."""
        return {
            "seconds": {self.kind: dict(self.seconds), "total": self.total},
            "memory": {self.kind: self.memory, "total": self.memory * self.at_once},
        }

    def sentences(self) -> list[str]:
        """Return the estimate as sentences for the user."""
        known = [f"{name} {duration(one)}" for name, one in self.seconds.items() if one is not None]
        others = [name for name, one in self.seconds.items() if one is None]
        found = [
            f"cost: about {duration(self.total)} with {self.at_once} {self.kind}"
            f"{'' if self.at_once == 1 else 's'} at once, and {size(self.memory * self.at_once)} of"
            f" memory; the report is in it. One {self.kind} takes: {', '.join(known)}."
        ] * bool(known)
        if others:
            found.append(f"cost: {', '.join(others)} failed when measured, and is in no figure.")
        return found


def measure(
    jobs: Iterable[Job], samples: Callable[[Job], Federation], resources: Resources
) -> Estimate:
    """Measure a warm round of each method in its first place; `Estimate.of` says what jobs cost.

    In another place, a job of a method is taken to cost as many times more or less as a job of the
    first method there does, which is measured in both. The state of PyTorch's random generators and
    its number of threads may change.
    """
    firsts: dict[tuple[str, str], Job] = {}
    at_home: dict[str, str] = {}  # first place of each method
    guide: dict[str, str] = {}  # first method of each place
    for job in jobs:
        firsts.setdefault((job.method, job.place), job)
        at_home.setdefault(job.method, job.place)
        guide.setdefault(job.place, job.method)
    found: dict[tuple[str, str], float] = {}
    memory, steps = 0, dict[str, int]()
    for key in dict.fromkeys([*at_home.items(), *((name, at) for at, name in guide.items())]):
        try:
            measured = _estimated(firsts[key], samples, resources)
        except (RunError, MethodError):  # a method that fails is no reason to refuse the others
            continue
        found[key] = measured.total
        memory = max(memory, measured.memory)
        steps.setdefault(key[0], measured.all_steps)
    for name, place in firsts:
        home = at_home[name]
        here, there = found.get((guide[place], place)), found.get((guide[place], home))
        if (name, place) not in found and (name, home) in found:
            found[name, place] = found[name, home] * (here / there if here and there else 1.0)
    own = {name: [one for (who, _), one in found.items() if who == name] for name in at_home}
    mean = {name: fmean(each) if each else None for name, each in own.items()}
    start = (WORKERS if resources.gpus else PROCESSES) if resources.concurrent > 1 else 0.0
    return Estimate(resources.kind, resources.concurrent, mean, memory, steps, found, start)


def _estimated(
    job: Job, samples: Callable[[Job], Federation], resources: Resources
) -> estimate.Estimate:
    """Estimate the cost of a job on this machine; the job may have a GPU of another."""
    config, engine = job.config, on_this_machine(job.config.engine)
    if resources.concurrent > 1:  # a job then has no processes of its own
        engine = engine.altered(workers=1)
    built = assembly.build(config, samples(job), engine=engine)
    with closing(built.engine), own_methods.named(config.algorithm):
        return estimate.measure(built)
