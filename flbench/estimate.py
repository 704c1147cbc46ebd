"""What a run would cost: payloads exactly, time and memory from a few measured steps."""

import resource
import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Phase
from flbench.engine.base import RoundSettings
from flbench.experiment import Experiment
from flbench.loop import Meter, advance, settings_of, visible
from flbench.tree import nbytes, put_, take
from flbench.types import Results, Stage, State
from flbench.wire import row_bytes, seal


@dataclass(frozen=True)
class Estimate:
    """Sizes in bytes, times in seconds.

    Attributes:
        parameters: scalars of the net.
        down: to one client in a round, after the first round.
        up: from one client in a round.
        cohort: clients of a round.
        steps: optimiser steps of a round.
        step: seconds of one step.
        client: seconds that a client costs besides its steps.
        judge: seconds of one evaluation of all clients.
        total: seconds of the whole run.
        data: bytes of the samples.
        state: bytes of server and clients.
        results: bytes that a cohort brings back.
        memory: bytes of the process now, plus the results.
    """

    parameters: int
    down: int
    up: int
    cohort: int
    steps: int
    step: float
    client: float
    judge: float
    total: float
    data: int
    state: int
    results: int
    memory: int


def measure(experiment: Experiment) -> Estimate:
    """Train a client of median size for a few steps, judge it, and scale up."""
    config, setting = experiment.config, experiment.algorithm.setting
    state = experiment.start()
    client = torch.argsort(setting.sizes)[len(setting.sizes) // 2][None]
    _train(experiment, state, client, 2)  # warms up
    few, results, _ = _train(experiment, state, client, 2)
    more, _, _ = _train(experiment, state, client, 8)
    step = max(0.0, (more - few) / 6)
    besides = max(0.0, few - 2 * step)
    epochs, size = config.train.local_epochs, config.train.batch_size
    cohort = max(1, int(config.train.participation * setting.clients + 0.5))
    steps = int((-(-setting.sizes // size)).double().mean() * epochs * cohort)
    _, _, down = _train(experiment, _after(experiment, state, results), client, 2)
    judge = _judge(experiment, state, client) * setting.clients
    evaluations = -(-config.train.rounds // config.evaluation.every)
    kept = nbytes(results.kept) + nbytes(results.sent.values)
    samples = experiment.federation
    return Estimate(
        parameters=setting.net.size,
        down=down,
        up=int(row_bytes(seal(results.sent)).sum()),
        cohort=cohort,
        steps=steps,
        step=step,
        client=besides,
        judge=judge,
        total=config.train.rounds * (steps * step + cohort * besides) + evaluations * judge,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(state.server) + nbytes(state.clients),
        results=kept * cohort,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + kept * cohort,
    )


def _train(
    experiment: Experiment, state: State, client: Tensor, steps: int
) -> tuple[float, Results, int]:
    """Return the seconds, results and dispatched bytes of one client with so many steps in each
    phase.
    """
    algorithm = experiment.algorithm
    program = algorithm.program(state)
    short = LocalProgram(
        tuple(
            replace(step, epochs=None, steps=steps, until=None) if isinstance(step, Phase) else step
            for step in program.steps
        ),
        program.keeps,
        program.sends,
        program.masks,
    )
    meter = Meter(partial(algorithm.dispatch, visible(state, program)))
    begin = time.perf_counter()
    results = experiment.engine.run(
        short,
        client,
        rows=partial(take, state.clients),
        dispatch=meter,
        settings=_settings(experiment, state),
    )
    return time.perf_counter() - begin, results, meter.total()


def _after(experiment: Experiment, state: State, results: Results) -> State:
    """Return the state after a round of that one client.

    What is dispatched then has its usual size.
    """
    program = experiment.algorithm.program(state)
    sent = seal(results.sent)
    stored = {name: value for name, value in sent.values.items() if name in program.keeps}
    put_(state.clients, results.ids, {**results.kept, **stored})
    update = experiment.algorithm.aggregate(visible(state, program), replace(results, sent=sent))
    return advance(state, experiment.algorithm.stages()[0], update)


def _settings(experiment: Experiment, state: State) -> RoundSettings:
    return settings_of(experiment.config, experiment.algorithm, state, Stage("estimate", 1))


def _judge(experiment: Experiment, state: State, client: Tensor) -> float:
    """Return the seconds that judging one client takes."""
    evaluator = experiment.evaluator()
    settings = _settings(experiment, state)
    name, deployment = next(iter(experiment.algorithm.deploy(state, client).items()))
    begin = time.perf_counter()
    evaluator.run(state, settings, name, deployment, client, evaluator.collectors(deployment))
    return time.perf_counter() - begin
