"""Estimate of a run's costs: exact bytes per client, times and memory of a measured round."""

import resource
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from flbench.client.program import LocalProgram, shortened
from flbench.core.tree import nbytes
from flbench.experiment import rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import apply_mask, row_bytes
from flbench.experiment.evaluate import BLOCK

SCALARS: Final = 2**24
"""Largest number of parameters of the models that are evaluated."""
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
        round: Seconds that the training of a round takes in this process.
        evaluate: Seconds that the first evaluation of all clients takes. Later ones can be shorter.
        common: Seconds that one evaluation on the common test set takes; 0 if there is none.
        total: Seconds that the whole run takes.
        data: Bytes of all samples.
        state: Bytes of the tensors that server and clients store.
        results: Bytes of the leaves that a cohort keeps and sends in a round.
        memory: Largest memory of the process so far, plus the clients' tensors and `results` as far
            as they are held in main memory, in bytes.
    """

    parameters: int
    down: int
    up: int
    cohort: int
    steps: int
    round: float
    evaluate: float
    common: float
    total: float
    data: int
    state: int
    results: int
    memory: int


def measure(experiment: Experiment) -> Estimate:
    """Train one round and evaluate some clients, and multiply by the numbers of the run.

    The tensors of the clients that are measured are copied, not those of all clients.

    Args:
        experiment: The experiment.
    """
    config, algorithm, engine = experiment.config, experiment.algorithm, experiment.engine
    setting = algorithm.setting
    before = rounds.training_state(algorithm, experiment.sketch())
    settings = rounds.settings_of(algorithm, before)
    program = algorithm.local_program(rounds.visible_to_server(before, LocalProgram(())))
    ids = algorithm.cohort(rounds.visible_to_server(before, program), settings.draw)
    evaluated = torch.arange(min(setting.clients, BLOCK, max(1, SCALARS // setting.net.size)))
    state = rounds.training_state(algorithm, experiment.sketch(torch.cat([ids, evaluated])))
    train = partial(rounds.train, algorithm, engine, state, settings, ids=ids)
    train(program=shortened(program, 1))  # the first steps of a process are slower
    begin = time.perf_counter()
    trained = train(program=program)
    one_round = time.perf_counter() - begin
    results, sent = trained.results, row_bytes(apply_mask(trained.results.sent))
    # The first dispatch can be smaller: clients know the seeded initial values.
    after = rounds.exchange(algorithm, state, trained).state
    now = rounds.settings_of(algorithm, after)
    program = algorithm.local_program(rounds.visible_to_server(after, LocalProgram(())))
    short = shortened(program, 1)
    down = rounds.train(algorithm, engine, after, now, ids=ids[:1], program=short).down
    evaluator = experiment.evaluator(lambda text: None)
    evaluator.seconds(after, settings, 1, common=False)  # the first pass of a process is slower
    evaluate = evaluator.seconds(after, settings, len(evaluated), common=False)
    common = evaluator.seconds(after, settings, 1, common=True)
    often = config.evaluation.common.every
    evaluations = 1 - (-config.train.rounds // config.evaluation_period)  # and the best round
    total = config.train.rounds * one_round + evaluations * evaluate
    total += (2 if often is None else -(-config.train.rounds // often)) * common
    kept = nbytes(results.kept) + nbytes(results.sent.values)
    kept = kept // max(1, len(results.ids)) * len(ids)
    own, samples = nbytes(state.clients), experiment.federation
    stored = sum(size for size in (own, kept) if experiment.storage.holds(size))
    return Estimate(
        parameters=setting.net.size,
        down=down,
        up=int(sent.double().mean()) if len(sent) else 0,
        cohort=len(ids),
        steps=int(results.steps.sum()),
        round=one_round,
        evaluate=evaluate,
        common=common,
        total=total,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(state.server) + own,
        results=kept,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + stored,
    )
