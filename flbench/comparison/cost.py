"""What a comparison will train and what it will cost, said before it starts."""

from collections.abc import Sequence

from flbench.analysis.sampling import Sampling
from flbench.analysis.statistics import CLAIM_FROM
from flbench.comparison.prepare import PreparedComparison
from flbench.core.wording import count
from flbench.jobs import estimate
from flbench.jobs.estimate import Plan
from flbench.jobs.job import Job


def measure(
    prepared: PreparedComparison,
    left: Sequence[Job],
) -> Plan:
    """Return the plan of a comparison, and its estimated cost; see `jobs.estimate.measure`."""
    design, cells = prepared.design, prepared.cells
    cost = estimate.measure(cells, prepared.samples.federation, prepared.resources)
    cost = cost.of(((cell.method, cell.place), 1.0) for cell in left)
    methods = list(cost.seconds)
    places = list(dict.fromkeys(cell.place for cell in cells))
    rounds = sum(cell.config.train.rounds for cell in left)
    tree = {
        "methods": methods,
        "places": places,
        "repetitions": design.seeds,
        "vary": design.vary,
        "reference": design.reference,
        "cells": len(cells),
        "left": len(left),
        "rounds": rounds,
        "jobs": cost.at_once,
        **cost.tree(),
    }
    said = [
        f"{count(len(methods), 'method')} ({', '.join(methods)}), {count(len(places), 'place')}"
        f" ({'; '.join(places)}), {count(design.seeds, 'repetition')}:"
        f" {count(len(cells), 'cell')}"
        f"{'' if len(left) == len(cells) else f', of which {len(left)} are not finished'},"
        f" {rounds:,} rounds."
    ]
    if design.seeds < CLAIM_FROM:
        said.append(f"no difference between methods can be claimed below {CLAIM_FROM} repetitions.")
    if design.seeds > 1 and (why_not := Sampling(design.vary).why_not):
        said.append(f"{why_not} support no claim that a method is better. `vary=both` does.")
    return Plan(tree, [*(f"plan: {one}" for one in said), *cost.sentences()])
