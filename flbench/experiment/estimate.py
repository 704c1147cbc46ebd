"""Estimate of a run's costs: exact bytes per client, times and memory from a few measured steps."""

import resource
import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Phase, shortened
from flbench.core.tree import nbytes
from flbench.core.types import State
from flbench.experiment import rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import apply_mask, row_bytes
from flbench.experiment.engine_choice import steps_of
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.rounds import Trained

MEASURING: Final = 3.0
"""Seconds after which no further method is measured."""
WORKERS: Final = 10.0
"""Seconds until Ray's workers have imported PyTorch and begin to train, on an idle machine."""
START: Final = 0.5
"""Seconds of a training besides its rounds: building the experiment, writing its tables."""


@dataclass(frozen=True)
class Estimate:
    """Estimated costs of a run; sizes in bytes, times in seconds.

    Attributes:
        parameters: Number of scalars of the net's parameters.
        down: Bytes that one client receives in a round, after the first round.
        up: Bytes that one client sends in a round.
        cohort: Number of clients in a round.
        steps: Number of optimizer steps of all clients in a round.
        step: Seconds that one step takes.
        client: Seconds that a client takes in a round besides its steps.
        evaluate: Seconds that one evaluation of all clients takes.
        common: Seconds that one evaluation on the common test set takes; 0 if there is none.
        training: Seconds that the training of all rounds takes.
        total: Seconds that the whole run takes.
        data: Bytes of all samples.
        state: Bytes of the tensors that server and clients store.
        results: Bytes of the leaves that a cohort keeps and sends in a round.
        memory: Largest memory of the process so far, plus `results`, in bytes.
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
    training: float
    total: float
    data: int
    state: int
    results: int
    memory: int


def measure(experiment: Experiment) -> Estimate:
    """Measure one client of median size for a few steps and extrapolate to the whole run.

    Args:
        experiment: The experiment; its state is not changed.
    """
    config, algorithm = experiment.config, experiment.algorithm
    setting = algorithm.setting
    state = rounds.training_state(algorithm, experiment.start())
    client = torch.argsort(setting.sizes)[len(setting.sizes) // 2][None]
    _train(experiment, state, client, 2)  # warm-up
    few, first = _train(experiment, state, client, 2)
    more, _ = _train(experiment, state, client, 8)
    phases = [step for step in _program(experiment, state).steps if isinstance(step, Phase)]
    step = max(0.0, (more - few) / 6) / max(1, len(phases))
    besides = max(0.0, few - 2 * step * len(phases))
    settings = rounds.settings_of(experiment.algorithm, state)
    seen = rounds.visible_to_server(state, first.program)
    cohort = len(algorithm.cohort(seen, settings.draw))
    steps = int(steps_of(experiment.algorithm, phases).mean() * cohort)
    # The first dispatch can be smaller: clients know the seeded initial values.
    after = rounds.exchange(algorithm, state, first).state
    down = _train(experiment, after, client, 2)[1].down
    evaluator = experiment.evaluator(lambda text: None)
    evaluate = _evaluate(evaluator, experiment, after, client) * setting.clients
    common = _common(evaluator, experiment, after, client)
    every, often = config.evaluation_period, config.evaluation.common.every
    evaluated = -(-config.train.rounds // every) * evaluate
    evaluated += (2 if often is None else -(-config.train.rounds // often)) * common
    training = config.train.rounds * (steps * step + cohort * besides)
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
        training=training,
        total=training + evaluated,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(state.server) + nbytes(state.clients),
        results=kept * cohort,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + kept * cohort,
    )


def _train(
    experiment: Experiment, state: State, client: Tensor, steps: int
) -> tuple[float, Trained]:
    """Train one client with the given number of steps in each phase.

    Returns:
        The seconds that it took, and the results.
    """
    program = _program(experiment, state)
    begin = time.perf_counter()
    trained = rounds.train(
        experiment.algorithm,
        experiment.engine,
        state,
        rounds.settings_of(experiment.algorithm, state),
        ids=client,
        program=shortened(program, steps),
    )
    return time.perf_counter() - begin, trained


def _program(experiment: Experiment, state: State) -> LocalProgram:
    return experiment.algorithm.program(rounds.visible_to_server(state, LocalProgram(())))


def _evaluate(evaluator: Evaluator, experiment: Experiment, state: State, client: Tensor) -> float:
    """Return the seconds that the evaluation of one client takes, over all deployments."""
    settings = rounds.settings_of(experiment.algorithm, state)
    begin = time.perf_counter()
    for name, deployment in experiment.algorithm.deploy(state, client).items():
        if name != "gm":
            statistics = evaluator.part_statistics(deployment)
            evaluator.run_statistics(state, settings, name, deployment, client, statistics)
    return time.perf_counter() - begin


def _common(evaluator: Evaluator, experiment: Experiment, state: State, client: Tensor) -> float:
    """Return the estimated seconds to evaluate all personal models on the common test set."""
    if not len(experiment.federation.common):
        return 0.0
    deployment = experiment.algorithm.deploy(state, client)["personal"]
    settings = rounds.settings_of(experiment.algorithm, state)
    begin = time.perf_counter()
    evaluator.run_statistics(
        state, settings, "personal", deployment, client, evaluator.common_statistics(deployment)
    )
    return (time.perf_counter() - begin) * experiment.federation.clients
