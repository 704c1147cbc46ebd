"""Estimate of a run's costs: exact bytes per client, times and memory from a few measured steps."""

import resource
import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Phase, shortened
from flbench.core.tree import digest, nbytes
from flbench.core.types import State
from flbench.engine.base import RoundSettings
from flbench.engine.local import most_processes, worker_bytes
from flbench.experiment import engine_choice, rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import apply_mask, row_bytes
from flbench.experiment.engine_choice import steps_of
from flbench.experiment.evaluate import BLOCK, Evaluator
from flbench.experiment.rounds import Trained
from flbench.workers.nesting import reason_against_workers

TRAINED: Final = 4
"""Clients that are trained to measure an engine that trains one client after the other."""
SCALARS: Final = 2**24
"""Largest number of parameters of the clients that have their own values in a measurement."""
EVALUATING: Final = 0.5
"""Seconds of an evaluation above which no more clients are measured."""
GROWTH: Final = 4
"""How many times as many clients are evaluated in the next measurement."""
MEASURING: Final = 3.0
"""Seconds after which no further method is measured."""
PROCESSES: Final = 4.0
"""Seconds until processes of an idle machine have imported PyTorch and begin to train."""
WORKERS: Final = 10.0
"""The same for workers of Ray."""
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
        evaluate: Seconds that the first evaluation of all clients takes. Later ones can be shorter.
        common: Seconds that one evaluation on the common test set takes; 0 if there is none.
        training: Seconds that the training of all rounds takes.
        total: Seconds that the whole run takes.
        data: Bytes of all samples.
        state: Bytes of the tensors that server and clients store.
        results: Bytes of the leaves that a cohort keeps and sends in a round.
        memory: Largest memory of the process so far, plus the clients' tensors and `results` as far
            as they are held in main memory, in bytes.
        worker: Memory of a worker process of this machine that it shares with no other process; 0
            if the run has no such workers.
        processes: Largest number of processes that train clients, with that of the run.
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
    worker: int = 0
    processes: int = 1


def measure(experiment: Experiment) -> Estimate:
    """Measure a few clients as the engine trains and evaluates them, and extrapolate to the run.

    The clients' tensors are not copied: those that are measured alone take memory.

    Args:
        experiment: The experiment.
    """
    config, algorithm, engine = experiment.config, experiment.algorithm, experiment.engine
    setting = algorithm.setting
    before = rounds.training_state(algorithm, experiment.sketch())
    settings = rounds.settings_of(algorithm, before)
    program = _program(experiment, before)
    ids = algorithm.cohort(rounds.visible_to_server(before, program), settings.draw)
    # An engine that stacks clients trains as many at once as in a round.
    trained = ids[: engine.block(config.train.batch_size) or TRAINED]
    evaluated = torch.arange(min(setting.clients, max(1, SCALARS // setting.net.size)))
    known = torch.cat([trained, evaluated])
    state = rounds.training_state(algorithm, experiment.sketch(known))
    first = _train(experiment, state, trained, 1)[1]  # warm-up
    few, slope = engine_choice.few_and_slope(
        lambda steps: _train(experiment, state, trained, steps)[0]
    )
    phases = [step for step in program.steps if isinstance(step, Phase)]
    step = slope / len(trained) / max(1, len(phases))
    besides = max(0.0, few / len(trained) - step * len(phases))
    cohort = len(ids)
    steps = int(steps_of(algorithm, phases).mean() * cohort)
    # The first dispatch can be smaller: clients know the seeded initial values.
    after = rounds.exchange(algorithm, state, first).state
    down = _train(experiment, after, trained[:1], 1)[1].down
    evaluator = experiment.evaluator(lambda text: None)
    evaluate = _evaluate(evaluator, after, settings, setting.clients)
    common = _common(evaluator, after, settings)
    every, often = config.evaluation_period, config.evaluation.common.every
    later = -(-config.train.rounds // every) - 1  # evaluations after the first one
    has_best = any(map(len, experiment.federation.partition.parts["validation"]))
    share = evaluator.share_evaluated(after, min(setting.clients, every * cohort))
    evaluations = (1 + has_best + later * share) * evaluate
    evaluations += (1 + has_best if often is None else -(-config.train.rounds // often)) * common
    evaluations += _digest(evaluator, after, settings, setting.clients)
    training = config.train.rounds * (steps * step + cohort * besides)
    kept = nbytes(first.results.kept) + nbytes(first.results.sent.values)
    kept //= max(1, len(first.results.ids))
    own = nbytes(state.clients)
    stored = own if experiment.storage.holds(own) else 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    samples = experiment.federation
    return Estimate(
        parameters=setting.net.size,
        down=down,
        up=_mean_upload(first),
        cohort=cohort,
        steps=steps,
        step=step,
        client=besides,
        evaluate=evaluate,
        common=common,
        training=training,
        total=training + evaluations,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(state.server) + own,
        results=kept * cohort,
        memory=used + stored + (kept * cohort if experiment.storage.holds(kept * cohort) else 0),
        **_workers(experiment),
    )


def _workers(experiment: Experiment) -> dict[str, int]:
    """Return memory of a worker of this machine and number of processes, if there are any."""
    used = experiment.found.engine
    if not experiment.may_have_workers or reason_against_workers() is not None:
        return {}
    net, federation = experiment.given
    processes = most_processes(used, net, federation)
    return {"worker": worker_bytes(net), "processes": processes} if processes > 1 else {}


def _mean_upload(trained: Trained) -> int:
    """Return the mean number of bytes that one client has sent."""
    sent = row_bytes(apply_mask(trained.results.sent))
    return int(sent.double().mean()) if len(sent) else 0


def _train(experiment: Experiment, state: State, ids: Tensor, steps: int) -> tuple[float, Trained]:
    """Train some clients with the given number of steps in each phase.

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
        ids=ids,
        program=shortened(program, steps),
    )
    return time.perf_counter() - begin, trained


def _program(experiment: Experiment, state: State) -> LocalProgram:
    return experiment.algorithm.program(rounds.visible_to_server(state, LocalProgram(())))


def _evaluate(evaluator: Evaluator, state: State, settings: RoundSettings, clients: int) -> float:
    """Return the estimated seconds of an evaluation of all clients on their own samples.

    More and more clients are evaluated, as long as that takes less than `EVALUATING` seconds.
    """
    count = 1
    while True:
        begin = time.perf_counter()
        evaluator.measure(state, settings, count)
        seconds = time.perf_counter() - begin
        if count == clients or (count > 1 and GROWTH * seconds > EVALUATING):
            return seconds * clients / count
        count = min(clients, GROWTH * count)


def _digest(evaluator: Evaluator, state: State, settings: RoundSettings, clients: int) -> float:
    """Return the estimated seconds of the digest over the weights of all clients' models."""
    some = torch.arange(
        min(clients, BLOCK, max(1, SCALARS // evaluator.algorithm.setting.net.size))
    )
    begin = time.perf_counter()
    digest(evaluator.hashed(state, settings, some))
    return (time.perf_counter() - begin) * clients / len(some)


def _common(evaluator: Evaluator, state: State, settings: RoundSettings) -> float:
    """Return the estimated seconds of an evaluation on the common test set; 0 without one."""
    if not (passes := evaluator.common_passes(state)):
        return 0.0
    client = torch.tensor([0])
    deployment = evaluator.algorithm.deploy(rounds.named(state), client)["personal"]
    statistics = evaluator.common_statistics(deployment)
    seconds = float("inf")
    for _ in range(3):  # the first pass has costs of its own
        begin = time.perf_counter()
        evaluator.run_statistics(state, settings, "personal", deployment, client, statistics)
        seconds = min(seconds, time.perf_counter() - begin)
        if seconds > EVALUATING:
            break
    return passes * seconds
