"""`engine.name=auto`: measure a few steps of each engine on the actual net and data."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np
import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.client.program import LocalProgram, Phase, shortened
from flbench.config.schema import Config
from flbench.core.errors import ConfigError, RunError
from flbench.core.types import State
from flbench.data import batches
from flbench.engine.base import Engine
from flbench.experiment.rounds import settings_of, train, visible_to_server

FEW_STEPS, MORE_STEPS = (
    1,
    4,
)  # steps of each client, to tell what a round costs from what a step costs
MEASURING_SECONDS: Final = 1.0  # seconds that repeated measurements of an engine take
RAY_MINIMUM_SECONDS: Final = 60.0  # seconds that a run must last before starting Ray can pay


@dataclass(frozen=True)
class Candidate:
    """What an engine would take; seconds.

    Attributes:
        name: of the engine.
        round: of one round.
        total: of the whole run's training, its start included.
    """

    name: str
    round: float
    total: float


def choose(
    config: Config, algorithm: Algorithm, state: State, make: Callable[[str], Engine]
) -> tuple[str, str]:
    """Return the name of the fastest engine, and a sentence that gives the reason.

    Args:
        config: of the experiment.
        algorithm: the method, whose programs are measured.
        state: before the first round of training; unchanged.
        make: builds an engine by its name.
    """
    found = [_measured("sequential", config, algorithm, state, make)]
    with suppress(ConfigError):  # not for this precision, or what a term of the method does
        found.append(_measured("vectorized", config, algorithm, state, make))
    several = len(os.sched_getaffinity(0)) > 1
    if several and find_spec("ray") and min(one.total for one in found) > RAY_MINIMUM_SECONDS:
        with suppress(ConfigError, RunError):  # no Ray here: one engine less to choose from
            found.append(_measured("ray", config, algorithm, state, make))
    best = min(found, key=lambda one: one.total)
    said = ", ".join(f"{one.name} {one.round:.3g} s" for one in found)
    return best.name, f"engine.name=auto chose {best.name}: a round takes about {said}."


def _measured(
    name: str,
    config: Config,
    algorithm: Algorithm,
    state: State,
    make: Callable[[str], Engine],
) -> Candidate:
    begin = time.perf_counter()
    engine = make(name)
    try:
        settings = settings_of(config, algorithm, state)
        program = algorithm.program(visible_to_server(state, LocalProgram(())))
        ids = algorithm.cohort(visible_to_server(state, program), settings.draw)

        def seconds(steps: int) -> float:
            start = time.perf_counter()
            train(algorithm, engine, state, settings, ids=ids, program=shortened(program, steps))
            return time.perf_counter() - start

        seconds(FEW_STEPS)  # warms up
        startup = time.perf_counter() - begin
        few, more = [seconds(FEW_STEPS)], [seconds(MORE_STEPS)]
        # Short steps several times: an engine that learns them is fast when it has.
        while len(few) < 2 or (sum(few) + sum(more) < MEASURING_SECONDS and len(few) < 12):
            few.append(seconds(FEW_STEPS))
            more.append(seconds(MORE_STEPS))
    finally:
        engine.close()
    phases = [step for step in program.steps if isinstance(step, Phase)]
    steps = float(steps_of(algorithm, phases)[ids].mean()) / max(1, len(phases))
    slope = max(0.0, (min(more) - min(few)) / (MORE_STEPS - FEW_STEPS))
    one = min(few) + slope * max(0.0, steps - FEW_STEPS)
    return Candidate(name, one, startup + config.train.rounds * one)


def steps_of(algorithm: Algorithm, phases: list[Phase]) -> Tensor:
    """Return the optimiser steps [N] of each client in a round."""
    config = algorithm.setting.train
    has_batchnorm = bool(algorithm.setting.net.names("batchnorm"))
    counts = torch.zeros(len(algorithm.setting.sizes), dtype=torch.float64)
    for phase in phases:
        single, share = has_batchnorm and phase.batchnorm == "train", phase.samples
        for client, size in enumerate(algorithm.setting.sizes.tolist()):
            size = round(share.high * size) - round(share.low * size)
            size = size if share.limit is None else min(size, share.limit)
            arranged = len(batches.arrange(np.arange(size), config, skip_single=single))
            epoch = -(-arranged // config.batch_size)
            counts[client] += phase.steps or (phase.epochs or 0) * epoch
    return counts
