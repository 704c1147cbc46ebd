"""What a comparison will train and what it will cost, said before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flbench.analysis.sampling import VARIED, Sampling
from flbench.comparison.prepare import PreparedComparison
from flbench.comparison.reuse import FoundRuns
from flbench.jobs import estimate
from flbench.jobs.estimate import Estimate
from flbench.jobs.job import Job


@dataclass(frozen=True)
class ComparisonCost:
    """What a comparison trains, and its estimated time and memory.

    Attributes:
        prepared: The comparison.
        left: Its cells that are to be trained.
        found: Finished runs that are used again as cells.
        cost: Time and memory.
    """

    prepared: PreparedComparison
    left: Sequence[Job]
    found: FoundRuns
    cost: Estimate

    @property
    def _places(self) -> list[str]:
        """Labels of data sets and settings."""
        return list(dict.fromkeys(cell.place for cell in self.prepared.cells))

    @property
    def _rounds(self) -> int:
        """Rounds of all cells that are not finished."""
        return sum(cell.config.train.rounds for cell in self.left)

    def tree(self) -> dict[str, Any]:
        """Return the plan and the estimates as values of JSON."""
        design = self.prepared.design
        return {
            "methods": list(self.cost.seconds),
            "places": self._places,
            "repetitions": design.seeds,
            "vary": design.vary,
            "reference": design.reference,
            "cells": len(self.prepared.cells),
            "left": len(self.left),
            "reused": len(self.found.runs),
            "rounds": self._rounds,
            "jobs": self.cost.at_once,
            **self.cost.tree(),
        }

    def sentences(self) -> list[str]:
        """Return the plan and the estimates as sentences for the user."""
        design, methods = self.prepared.design, list(self.cost.seconds)
        cells, left = len(self.prepared.cells), len(self.left)
        found = [
            f"plan: {_count(len(methods), 'method')} ({', '.join(methods)}),"
            f" {_count(len(self._places), 'place')} ({'; '.join(self._places)}),"
            f" {_count(design.seeds, 'repetition')}: {_count(cells, 'cell')}"
            f"{'' if left == cells else f', of which {left} are not finished'},"
            f" {self._rounds:,} rounds.",
        ]
        if design.seeds > 1:
            found.append(
                f"plan: {VARIED[design.vary]}. All methods of a repetition have the same seeds."
            )
            if why_not := Sampling(design.vary).why_not:
                found.append(
                    f"plan: {why_not} support no claim that a method is better. `--vary both` does."
                )
        if design.reference is not None:
            found.append(f"plan: the others are compared with {design.reference}.")
        found += self.found.notes
        if design.tuned is not None:
            others = f" but {', '.join(design.untuned)}" if design.untuned else ""
            found.append(f"plan: the methods{others} have the best parameters of {design.tuned}.")
        return [*found, *self.cost.sentences()]


def measure(prepared: PreparedComparison, left: Sequence[Job], found: FoundRuns) -> ComparisonCost:
    """Estimate the cost of a comparison; see `jobs.estimate.measure`.

    Args:
        prepared: The comparison.
        left: Its cells that are to be trained.
        found: Finished runs that are used again as cells.
    """
    cost = estimate.measure(prepared.cells, left, prepared.samples.federation, prepared.resources)
    return ComparisonCost(prepared, left, found, cost)


def _count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> _count(1, "cell"), _count(1200, "cell")
    ('1 cell', '1,200 cells')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
