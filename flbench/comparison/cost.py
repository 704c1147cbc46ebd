"""What a comparison will train and what it will cost, estimated before it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from flbench.analysis.sampling import VARIED, Sampling
from flbench.comparison.plan import Design
from flbench.comparison.prepare import PreparedComparison
from flbench.comparison.reuse import FoundRuns
from flbench.experiment.estimate import PROCESSES, WORKERS
from flbench.jobs import estimate
from flbench.jobs.job import Job
from flbench.reports.tables import size
from flbench.reports.terminal import duration


@dataclass(frozen=True)
class ComparisonCost:
    """What a comparison trains, and its estimated time and memory.

    Attributes:
        methods: Labels of the methods.
        places: Labels of data sets and settings.
        design: What the user asked for.
        cells: Number of cells.
        left: Number of cells that are not finished, and do not exist elsewhere.
        rounds: Rounds of all cells that are not finished.
        jobs: Cells at once.
        seconds: Estimated seconds of a cell by method, the mean over the places.
        measured: Labels of the methods that were measured.
        total: Estimated seconds of all cells that are not finished.
        memory: Estimated bytes of the process of one cell.
        found: Finished runs that are used again as cells.
    """

    methods: tuple[str, ...]
    places: tuple[str, ...]
    design: Design
    cells: int
    left: int
    rounds: int
    jobs: int
    seconds: Mapping[str, float]
    measured: tuple[str, ...]
    total: float
    memory: int
    found: FoundRuns

    def tree(self) -> dict[str, Any]:
        """Return the plan and the estimates as values of JSON."""
        return {
            "methods": list(self.methods),
            "places": list(self.places),
            "repetitions": self.design.seeds,
            "vary": self.design.vary,
            "reference": self.design.reference,
            "cells": self.cells,
            "left": self.left,
            "reused": len(self.found.runs),
            "rounds": self.rounds,
            "jobs": self.jobs,
            "seconds": {
                "cell": dict(self.seconds),
                "measured": list(self.measured),
                "total": self.total,
            },
            "memory": {"cell": self.memory, "total": self.memory * self.jobs},
        }

    def sentences(self) -> list[str]:
        """Return the plan and the estimates as sentences for the user."""
        left = "" if self.left == self.cells else f", of which {self.left} are not finished"
        found = [
            f"plan: {_count(len(self.methods), 'method')} ({', '.join(self.methods)}),"
            f" {_count(len(self.places), 'place')} ({'; '.join(self.places)}),"
            f" {_count(self.design.seeds, 'repetition')}: {_count(self.cells, 'cell')}{left},"
            f" {self.rounds:,} rounds.",
        ]
        if self.design.seeds > 1:
            found.append(
                f"plan: {VARIED[self.design.vary]}. All methods of a repetition have the same"
                " seeds."
            )
            if why_not := Sampling(self.design.vary).why_not:
                found.append(
                    f"plan: {why_not} support no claim that a method is better. `--vary both` does."
                )
        if self.design.reference is not None:
            found.append(f"plan: the others are compared with {self.design.reference}.")
        found += self.found.sentences(self.cells)
        if self.design.tuned is not None:
            others = f" but {', '.join(self.design.untuned)}" if self.design.untuned else ""
            found.append(
                f"plan: the methods{others} have the best parameters of {self.design.tuned}."
            )
        each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.seconds.items())
        found.append(
            f"cost: about {duration(self.total)} with {_count(self.jobs, 'cell')} at once, and"
            f" {size(self.memory * self.jobs)} of memory. One cell takes: {each}."
        )
        found += estimate.assumed(self.methods, self.measured)
        return found


def measure(prepared: PreparedComparison, left: Sequence[Job], reused: FoundRuns) -> ComparisonCost:
    """Estimate the cost of a comparison from a few training steps of each method.

    See `jobs.estimate.measure`.

    Args:
        prepared: The comparison.
        left: Its cells that are to be trained.
        reused: Finished runs that are used again as cells.
    """
    measured = estimate.measure(
        ((cell.method, cell.place), cell.config, partial(prepared.samples.federation, cell))
        for cell in prepared.cells
        if not cell.repetition
    )
    found = measured.seconds
    at_once = prepared.resources.concurrent
    methods = tuple(dict.fromkeys(cell.method for cell in prepared.cells))
    places = tuple(dict.fromkeys(cell.place for cell in prepared.cells))
    seconds = {
        method: fmean([found[key] for key in found if key[0] == method] or [measured.mean])
        for method in methods
    }
    each = [found.get((cell.method, cell.place), seconds[cell.method]) for cell in left]
    total = max(sum(each) / at_once, *each) if each else 0.0
    if at_once > 1 and each:
        total += WORKERS if prepared.resources.gpus else PROCESSES
    return ComparisonCost(
        methods=methods,
        places=places,
        design=prepared.design,
        cells=len(prepared.cells),
        left=len(left),
        rounds=sum(cell.config.train.rounds for cell in left),
        jobs=at_once,
        seconds=seconds,
        measured=tuple(dict.fromkeys(method for method, _ in found)),
        total=total,
        memory=measured.memory,
        found=reused,
    )


def _count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> _count(1, "cell"), _count(1200, "cell")
    ('1 cell', '1,200 cells')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
