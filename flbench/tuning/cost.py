"""What a study will train and what it will cost, said before it starts."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from flbench.experiment.estimate import REPORT, WORKERS
from flbench.jobs import estimate
from flbench.jobs.job import Job
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.request import LONG_TAIL, ORIGIN, grace_of

CONTINUED: Final = 0.5
"""Share of the trials that ASHA lets go on: a third in the long run, and more of the first ones."""


class Plan(NamedTuple):
    """What a study trains, and its estimated time and memory.

    Attributes:
        tree: As values of JSON.
        sentences: For the user.
    """

    tree: dict[str, Any]
    sentences: list[str]


def measure(prepared: PreparedStudy) -> Plan:
    """Return the plan of a study, and its estimated cost; see `jobs.estimate.measure`.

    ASHA is taken to let `CONTINUED` of the trials go on, and other than default parameters to win.
    """
    request, config = prepared.request, prepared.config
    trials, seeds, rounds = request.trials, request.seeds, config.train.rounds
    jobs = [Job(name, name, "", "", 0, mine, {}) for name, mine in prepared.configs.items()]
    every, is_halved = config.evaluation_period, request.scheduler == "asha"
    grace = {name: grace_of(name, rounds, every) for name in request.methods if is_halved}
    left = []
    for job in jobs:
        share = grace.get(job.method, rounds) / rounds
        others = share + (1 - share) * CONTINUED
        left += [(job, one) for one in [1.0, *[others] * (trials - 1), *[1.0] * 2 * seeds]]
    cost = estimate.measure(jobs, left, lambda job: prepared.federation, prepared.resources)
    # The search is in Ray, also without GPUs, and has a report beside that of the comparison.
    cost = replace(cost, total=cost.total + WORKERS + REPORT)
    cells = [len(jobs) * seeds, 2 * len(jobs) * seeds]
    tree = {
        "methods": list(request.methods),
        "trials": trials,
        "rounds": rounds,
        "seeds": seeds,
        "vary": request.vary,
        "trainings": {"search": len(jobs) * trials, "cells": cells},
        "jobs": cost.at_once,
        "asha_stops_from_round": grace,
        **cost.tree(),
    }
    said = [
        f"plan: {trials} trials for each of {', '.join(request.methods)} ({len(jobs) * trials}"
        f" trainings of at most {rounds} rounds)"
        + (
            f", then the default and the best parameters with {seeds} repetitions each ({cells[0]}"
            f" to {cells[1]} cells of {rounds} rounds)."
            if seeds
            else ", and no cells: test parts are not evaluated."
        )
    ]
    own = [key for key in LONG_TAIL if prepared.origins[request.methods[0]].get(key) == ORIGIN]
    if "data.imbalance" in own:
        values = ", ".join(f"{key}={LONG_TAIL[key]}" for key in own)
        said.append(f"plan: no data are named, so these are digits with rare classes ({values}).")
    if grace and min(grace.values()) < rounds:
        first = ", ".join(f"{number} ({name})" for name, number in grace.items())
        said.append(
            f"plan: ASHA may stop a trial from round {first} on; default parameters are trained to"
            f" the end. The cost is that if {CONTINUED:.0%} of the others go on."
        )
    said += cost.sentences()
    return Plan(tree, said)
