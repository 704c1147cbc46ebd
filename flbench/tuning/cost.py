"""What a study will train and what it will cost, said before it starts."""

from dataclasses import replace
from typing import Final

from flbench.experiment.estimate import REPORT, WORKERS
from flbench.jobs.estimate import Plan
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.request import LONG_TAIL, ORIGIN, grace_of

CONTINUED: Final = 0.5
"""Share of the trials that ASHA lets go on: a third in the long run, and more of the first ones."""


def measure(prepared: PreparedStudy) -> Plan:
    """Return the plan of a study, and its estimated cost; see `jobs.estimate.measure`.

    ASHA is taken to let `CONTINUED` of the trials go on, and other than default parameters to win.
    """
    request, config = prepared.request, prepared.config
    trials, seeds, rounds = prepared.trials, request.seeds, config.train.rounds
    search = sum(trials.values())
    every, is_halved = config.evaluation_period, request.scheduler == "asha"
    grace = {name: grace_of(name, rounds, every) for name in request.methods if is_halved}
    cost, left = prepared.cost or prepared.measure(), []
    for job in cost.each:
        share = grace.get(job[0], rounds) / rounds
        others = share + (1 - share) * CONTINUED
        each = [1.0, *[others] * (trials[job[0]] - 1), *[1.0] * 2 * seeds]
        left += [(job, one) for one in each]
    cost = cost.of(left)
    # The search is in Ray, also without GPUs, and has a report beside that of the comparison.
    cost = replace(cost, total=cost.total + WORKERS + REPORT)
    cells = [len(trials) * seeds, 2 * len(trials) * seeds]
    tree = {
        "methods": list(request.methods),
        "trials": request.trials,
        "trials_of": trials,
        "rounds": rounds,
        "seeds": seeds,
        "vary": request.vary,
        "trainings": {"search": search, "cells": cells},
        "jobs": cost.at_once,
        "asha_stops_from_round": grace,
        **cost.tree(),
    }
    said = [
        f"plan: trials: {', '.join(f'{number} of {name}' for name, number in trials.items())}"
        f" ({search} trainings of at most {rounds} rounds)"
        + (
            f", then the default and the best parameters with {seeds} repetitions each ({cells[0]}"
            f" to {cells[1]} cells of {rounds} rounds)."
            if seeds
            else ", and no cells: test parts are not evaluated."
        )
    ]
    own = [key for key in LONG_TAIL if prepared.origins[request.methods[0]].get(key) == ORIGIN]
    if own:
        values = ", ".join(f"{key}={LONG_TAIL[key]}" for key in own)
        said.append(f"plan: no data are named, so these are digits, with {values}.")
    if prepared.steps:
        totals = [count * prepared.steps[name] for name, count in trials.items()]
        each_has = ", ".join(f"{name} {count:,}" for name, count in prepared.steps.items())
        said.append(
            f"plan: optimizer steps of a whole trial: {each_has}. The steps of the searches"
            f" differ by {max(totals) / min(totals) - 1:.1%}."
        )
    if grace and min(grace.values()) < rounds:
        first = ", ".join(f"{number} ({name})" for name, number in grace.items())
        said.append(
            f"plan: ASHA may stop a trial from round {first} on; default parameters are trained to"
            f" the end. The cost assumes that {CONTINUED:.0%} of the others are not stopped."
        )
    said += cost.sentences()
    return Plan(tree, said)
