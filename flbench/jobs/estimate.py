"""Seconds and memory of many trainings, estimated before the first of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flbench.core.errors import MethodError, RunError
from flbench.data.federation import Federation
from flbench.experiment import assembly, estimate, own_methods
from flbench.experiment.engines import on_this_machine
from flbench.experiment.estimate import MEASURING, PROCESSES, START, WORKERS
from flbench.jobs.job import Job
from flbench.reports.shown import size
from flbench.reports.terminal import duration
from flbench.workers.ray_resources import Resources


@dataclass(frozen=True)
class Estimate:
    """Estimated time and memory of jobs.

    Attributes:
        kind: What a job is called, such as `cell`.
        at_once: Number of jobs at the same time.
        seconds: Seconds of a job by method, the mean over the places; None for a method that was
            not measured.
        total: Seconds of all jobs. A method that was not measured counts with the mean of the
            others.
        memory: Bytes of the process of one job, the largest of those that were measured.
    """

    kind: str
    at_once: int
    seconds: Mapping[str, float | None]
    total: float
    memory: int

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
            f" memory. One {self.kind} takes: {', '.join(known) or 'not measured'}."
        ]
        if others:
            found.append(f"cost: {', '.join(others)} not measured; the mean is assumed.")
        return found


def measure(
    jobs: Sequence[Job],
    left: Sequence[Job],
    samples: Callable[[Job], Federation],
    resources: Resources,
) -> Estimate:
    """Estimate the cost of jobs from a round of the first job of each method and place.

    It takes about `MEASURING` seconds at most, and one training more. The state of PyTorch's random
    generators and its number of threads may change.

    Args:
        jobs: All jobs.
        left: Those that are to be trained; a job can be there several times.
        samples: Function from a job to the samples of its clients.
        resources: Number of jobs at the same time.
    """
    begin = time.monotonic()
    found: dict[tuple[str, str], float] = {}
    memory = 0
    firsts: dict[tuple[str, str], Job] = {}
    for job in jobs:
        firsts.setdefault((job.method, job.place), job)
    for job in firsts.values():
        if found and time.monotonic() - begin > MEASURING:
            break
        try:
            measured = _estimated(job, samples)
        except (RunError, MethodError):  # a method that fails is no reason to refuse the others
            continue
        found[job.method, job.place] = START + measured.total
        memory = max(memory, measured.memory)
    mean = fmean(found.values()) if found else START
    seconds: dict[str, float | None] = {}
    for method in dict.fromkeys(job.method for job in jobs):
        mine = [one for (name, _), one in found.items() if name == method]
        seconds[method] = fmean(mine) if mine else None
    each = [found.get((job.method, job.place), seconds[job.method] or mean) for job in left]
    at_once = resources.concurrent
    total = max(sum(each) / at_once, *each) if each else 0.0
    if at_once > 1 and each:
        total += WORKERS if resources.gpus else PROCESSES
    return Estimate(resources.kind, at_once, seconds, total, memory)


def _estimated(job: Job, samples: Callable[[Job], Federation]) -> estimate.Estimate:
    """Estimate the cost of a job on this machine; the job may have a GPU of another."""
    config = job.config
    built = assembly.build(config, samples(job), engine=on_this_machine(config.engine))
    with closing(built.engine), own_methods.named(config.algorithm):
        return estimate.measure(built)
