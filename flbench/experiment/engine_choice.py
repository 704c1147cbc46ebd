"""Choice of the engine: by the device without a name, by measured steps for `auto`."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.client.program import LocalProgram, Phase, shortened
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError
from flbench.core.types import State
from flbench.data import batches
from flbench.engine.base import Engine, find_device
from flbench.experiment.rounds import settings_of, train, visible_to_server

# Steps of each client in the two measurements that separate the time of a step from the time that
# a round takes besides its steps.
FEW_STEPS: Final = 1
MORE_STEPS: Final = 4
MEASURING_SECONDS: Final = 1.0  # for repeated measurements of one engine
WORKERS_MINIMUM_SECONDS: Final = 2.0  # a shorter run is trained by one process
RAY_MINIMUM_SECONDS: Final = 60.0  # a shorter run cannot regain the time that Ray takes to start


@dataclass(frozen=True)
class Candidate:
    """Estimated times of an engine.

    Attributes:
        name: Name of the engine.
        round: Seconds that the training of one round takes.
        total: Seconds that the training of the whole run takes, including the engine's start.
    """

    name: str
    round: float
    total: float


def stacks_unasked(asked: EngineConfig) -> bool:
    """Return whether the vectorized engine is tried because none is named and there is a GPU.

    One client at a time leaves most of a GPU idle.

    Args:
        asked: Section `engine` as the user asked for it.
    """
    is_named = "name" in asked.model_fields_set
    return not is_named and find_device(asked.device).type == "cuda"


def choose(
    algorithm: Algorithm,
    state: State,
    make: Callable[[str], Engine],
    *,
    processes: int = 1,
    has_cluster: bool = False,
) -> tuple[str, str]:
    """Return the name of the fastest engine, and a note with the measured times.

    Engines that cannot run this configuration are left out. Ray is only measured where the user
    names a cluster, and the run would take more than a minute.

    Args:
        algorithm: The method, whose local program is measured.
        state: State before the first round of training; it is not changed.
        make: Function that builds an engine by its name.
        processes: Processes of this machine that train at the same time. One is measured.
        has_cluster: Whether the user names a cluster of Ray (`engine.address`).
    """
    candidates = [measured("sequential", algorithm, state, make, processes)]
    left_out = ""
    try:
        candidates.append(measured("vectorized", algorithm, state, make, processes))
    except ConfigError:  # the precision, the net, or an operation in a loss term
        left_out = " The vectorized engine cannot train this configuration."
    if has_cluster and min(one.total for one in candidates) > RAY_MINIMUM_SECONDS:
        with suppress(ConfigError, RunError):  # Ray is not installed, or no cluster answers
            candidates.append(measured("ray", algorithm, state, make))
    best = min(candidates, key=lambda one: one.total)
    times = ", ".join(f"{one.name} {one.round:.3g} s" for one in candidates)
    reason = f"engine.name=auto chose {best.name}: a round takes about {times}.{left_out}"
    return best.name, reason


def measured(
    name: str,
    algorithm: Algorithm,
    state: State,
    make: Callable[[str], Engine],
    processes: int = 1,
) -> Candidate:
    """Return the times of an engine, extrapolated from rounds of one and of four steps.

    Args:
        name: Name of the engine.
        algorithm: The method, whose local program is measured.
        state: State before the first round of training; it is not changed.
        make: Function that builds an engine by its name.
        processes: Processes that will train at the same time. Each has clients, or whole blocks of
            them, of its own. Short runs are trained by one.
    """
    begin = time.perf_counter()
    engine = make(name)
    try:
        settings = settings_of(algorithm, state)
        program = algorithm.program(visible_to_server(state, LocalProgram(())))
        ids = algorithm.cohort(visible_to_server(state, program), settings.draw)

        def seconds(steps: int) -> float:
            start = time.perf_counter()
            train(algorithm, engine, state, settings, ids=ids, program=shortened(program, steps))
            return time.perf_counter() - start

        seconds(FEW_STEPS)  # warm-up
        startup = time.perf_counter() - begin
        few, slope = few_and_slope(seconds)
        parts = -(-len(ids) // (engine.block(algorithm.setting.train.batch_size) or 1))
    finally:
        engine.close()
    phases = [step for step in program.steps if isinstance(step, Phase)]
    steps = float(steps_of(algorithm, phases)[ids].mean()) / max(1, len(phases))
    one = few + slope * max(0.0, steps - FEW_STEPS)
    if algorithm.setting.rounds * one > WORKERS_MINIMUM_SECONDS:
        one /= max(1, min(processes, parts))
    return Candidate(name, one, startup + algorithm.setting.rounds * one)


def few_and_slope(seconds: Callable[[int], float]) -> tuple[float, float]:
    """Return the seconds of a short round, and what a further step of each client adds to them.

    Args:
        seconds: Function that trains with a number of steps for each client and phase, and returns
            how many seconds that took. It has been called once before.
    """
    few, more = [seconds(FEW_STEPS)], [seconds(MORE_STEPS)]
    # Repeat measurements of short rounds: an engine that records steps is faster afterwards.
    while len(few) < 2 or (sum(few) + sum(more) < MEASURING_SECONDS and len(few) < 12):
        few.append(seconds(FEW_STEPS))
        more.append(seconds(MORE_STEPS))
    return min(few), max(0.0, (min(more) - min(few)) / (MORE_STEPS - FEW_STEPS))


def steps_of(algorithm: Algorithm, phases: list[Phase]) -> Tensor:
    """Return the number of optimizer steps [N] float64 that each client takes in a round.

    Args:
        algorithm: The method, with the sizes of the clients and the section `train`.
        phases: Phases of the local program.
    """
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
