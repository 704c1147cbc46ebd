"""What a run would cost: payloads exactly, time and memory from a few measured steps."""

import resource
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Phase, shortened
from flbench.core.tree import nbytes
from flbench.core.types import State
from flbench.engine.base import RoundSettings
from flbench.experiment import rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import apply_mask, row_bytes
from flbench.experiment.engine_choice import steps_of
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.rounds import Trained


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
        evaluate: seconds of one evaluation of all clients.
        common: seconds of one evaluation on the common test set; 0 where there is none.
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
    evaluate: float
    common: float
    total: float
    data: int
    state: int
    results: int
    memory: int


def measure(experiment: Experiment) -> Estimate:
    """Train a client of median size for a few steps, evaluate it, and scale up."""
    config, algorithm = experiment.config, experiment.algorithm
    setting = algorithm.setting
    state = rounds.training_state(algorithm, experiment.start())
    client = torch.argsort(setting.sizes)[len(setting.sizes) // 2][None]
    _train(experiment, state, client, 2)  # warms up
    few, first = _train(experiment, state, client, 2)
    more, _ = _train(experiment, state, client, 8)
    phases = [step for step in _program(experiment, state).steps if isinstance(step, Phase)]
    step = max(0.0, (more - few) / 6) / max(1, len(phases))
    besides = max(0.0, few - 2 * step * len(phases))
    settings = _settings(experiment, state)
    seen = rounds.visible_to_server(state, first.program)
    cohort = len(algorithm.cohort(seen, settings.draw))
    steps = int(steps_of(experiment.algorithm, phases).mean() * cohort)
    # What is dispatched has its usual size after the first round.
    after = rounds.exchange(algorithm, state, first).state
    down = _train(experiment, after, client, 2)[1].down
    evaluator = experiment.evaluator(lambda text: None)
    evaluate = _evaluate(evaluator, experiment, after, client) * setting.clients
    common = _common(evaluator, experiment, after, client)
    every, often = config.evaluation.every, config.evaluation.common.every
    evaluated = -(-config.train.rounds // every) * evaluate
    evaluated += (2 if often is None else -(-config.train.rounds // often)) * common
    kept = nbytes(first.results.kept) + nbytes(first.results.sent.values)
    samples = experiment.federation
    return Estimate(
        parameters=setting.net.size,
        down=down,
        up=int(row_bytes(apply_mask(first.results.sent)).sum()),
        cohort=cohort,
        steps=steps,
        step=step,
        client=besides,
        evaluate=evaluate,
        common=common,
        total=config.train.rounds * (steps * step + cohort * besides) + evaluated,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(state.server) + nbytes(state.clients),
        results=kept * cohort,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + kept * cohort,
    )


def _train(
    experiment: Experiment, state: State, client: Tensor, steps: int
) -> tuple[float, Trained]:
    """Return the seconds that one client takes with so many steps in each phase, and the rest."""
    program = _program(experiment, state)
    begin = time.perf_counter()
    trained = rounds.train(
        experiment.algorithm,
        experiment.engine,
        state,
        _settings(experiment, state),
        ids=client,
        program=shortened(program, steps),
    )
    return time.perf_counter() - begin, trained


def _program(experiment: Experiment, state: State) -> LocalProgram:
    return experiment.algorithm.program(rounds.visible_to_server(state, LocalProgram(())))


def _settings(experiment: Experiment, state: State) -> RoundSettings:
    return rounds.settings_of(experiment.config, experiment.algorithm, state)


def _evaluate(evaluator: Evaluator, experiment: Experiment, state: State, client: Tensor) -> float:
    """Return the seconds that evaluating one client takes, with all its deployments."""
    settings = _settings(experiment, state)
    begin = time.perf_counter()
    for name, deployment in experiment.algorithm.deploy(state, client).items():
        if name != "gm":
            statistics = evaluator.part_statistics(deployment)
            evaluator.run_statistics(state, settings, name, deployment, client, statistics)
    return time.perf_counter() - begin


def _common(evaluator: Evaluator, experiment: Experiment, state: State, client: Tensor) -> float:
    """Return the seconds that evaluating all personal models on the common test set takes."""
    if not len(experiment.federation.common):
        return 0.0
    deployment = experiment.algorithm.deploy(state, client)["personal"]
    settings = _settings(experiment, state)
    begin = time.perf_counter()
    evaluator.run_statistics(
        state, settings, "personal", deployment, client, evaluator.common_statistics(deployment)
    )
    return (time.perf_counter() - begin) * experiment.federation.clients
