"""Estimate of a run's costs: exact bytes per client, times and memory of a measured round."""

import resource
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Phase, Step, shortened
from flbench.core.tree import nbytes
from flbench.core.types import State
from flbench.engine.base import RoundSettings
from flbench.experiment import rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import apply_mask, row_bytes
from flbench.experiment.evaluate import BLOCK, Evaluator
from flbench.experiment.rounds import Trained

SCALARS: Final = 2**24
"""Largest number of parameters of the models that are evaluated."""
LONG: Final = 10.0
"""Seconds of a round that is not trained again to be measured without the start of processes."""
LATER: Final = 3
"""Rounds that are measured of a method in which the length of a phase depends on losses."""
PROCESSES: Final = 4.0
"""Seconds until processes of an idle machine have imported PyTorch and begin to train."""
WORKERS: Final = 12.0
"""The same for workers of Ray, with its servers."""
MIRROR: Final = 6.0
"""Seconds from the beginning of a short run until MLflow has all of it."""
START: Final = 0.5
"""Seconds of a training besides its rounds: building the experiment, writing checkpoints, tables
and its report."""
REPORT: Final = 4.0
"""Seconds of the report of a comparison or a study."""


@dataclass(frozen=True)
class Estimate:
    """Estimated costs of a run; sizes in bytes, times in seconds.

    Attributes:
        parameters: Number of scalars of the net's parameters.
        down: Bytes that one client receives in a round, after the first round.
        up: Bytes that one client sends in a round.
        cohort: Number of clients in a round.
        steps: Number of optimizer steps of all clients in a round.
        all_steps: Number of optimizer steps of the whole run, if all rounds of a stage take as many
            as the last one that was measured.
        round: Seconds that the training of a round takes.
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
    all_steps: int
    round: float
    evaluate: float
    common: float
    total: float
    data: int
    state: int
    results: int
    memory: int


def measure(experiment: Experiment) -> Estimate:
    """Train a round of each stage and evaluate clients; multiply by the numbers of the run.

    The tensors of the clients that are measured are copied, not those of all clients.
    """
    config, algorithm, engine = experiment.config, experiment.algorithm, experiment.engine
    setting = algorithm.setting
    evaluated = torch.arange(min(setting.clients, BLOCK, max(1, SCALARS // setting.net.size)))
    longest = rounds.training_state(algorithm, experiment.sketch()).stage
    train, steps = 0.0, 0
    for number, stage in enumerate(algorithm.stages()):
        if stage.rounds and number != longest:
            spent = _over(stage.rounds, _measured(experiment, number).costs)
            train += spent.seconds
            steps += spent.steps
    evaluator = experiment.evaluator(lambda text: None)
    main = _measured(experiment, longest, evaluated, evaluator)
    length = algorithm.stages()[longest].rounds
    results, after, settings = main.trained.results, main.after, main.settings
    spent = _over(length, main.costs)
    train += spent.seconds
    steps += spent.steps
    sent = row_bytes(apply_mask(results.sent))
    # The first dispatch can be smaller: clients know the seeded initial values.
    now = rounds.settings_of(algorithm, after)
    program = algorithm.local_program(rounds.visible_to_server(after, LocalProgram(())))
    short = shortened(program, 1)
    down = rounds.train(algorithm, engine, after, now, ids=main.ids[:1], program=short).down
    evaluator.seconds(after, settings, 1, common=False)  # the first pass of a process is slower
    evaluate = evaluator.seconds(after, settings, len(evaluated), common=False)
    evaluate += results.observe_seconds
    common = evaluator.seconds(after, settings, 1, common=True)
    often = config.evaluation.common.every
    evaluations = 1 - (-config.train.rounds // config.evaluation_period)  # and the best round
    total = START + train + evaluations * evaluate
    total += (2 if often is None else -(-config.train.rounds // often)) * common
    kept = nbytes(results.kept) + nbytes(results.sent.values)
    kept = kept // max(1, len(results.ids)) * len(main.ids)
    own, samples = nbytes(after.clients), experiment.federation
    stored = sum(size for size in (own, kept) if experiment.storage.holds(size))
    return Estimate(
        parameters=setting.net.size,
        down=down,
        up=int(sent.double().mean()) if len(sent) else 0,
        cohort=len(main.ids),
        steps=int(results.steps.sum()),
        all_steps=steps,
        round=main.costs[-1].seconds,
        evaluate=evaluate,
        common=common,
        total=total,
        data=nbytes({"x": samples.x, "y": samples.y}),
        state=nbytes(after.server) + own,
        results=kept,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + stored,
    )


class _Cost(NamedTuple):
    """Seconds and optimizer steps of all clients of a round."""

    seconds: float
    steps: int


class _Measured(NamedTuple):
    """The last measured round of a stage, the state after it, and what each measured round cost."""

    ids: Tensor
    settings: RoundSettings
    trained: Trained
    after: State
    costs: list[_Cost]


def _over(rounds: int, measured: list[_Cost]) -> _Cost:
    """Return the sum over rounds; those that were not measured cost as much as the last one."""
    every = [*measured, *measured[-1:] * (rounds - len(measured))][:rounds]
    return _Cost(sum(one.seconds for one in every), sum(one.steps for one in every))


def _measured(
    experiment: Experiment,
    number: int,
    evaluated: Tensor | None = None,
    evaluator: Evaluator | None = None,
) -> _Measured:
    """Train the first round of a stage: once to start processes and allocate, then for the time.

    Where the length of a phase depends on losses (`Phase.until`), the next two rounds follow.

    Args:
        experiment: The experiment.
        number: Number of the stage.
        evaluated: Ids [K] of further clients whose rows the state after it has.
        evaluator: What evaluates the cohort at the end of the round; None for nothing.
    """
    algorithm, engine = experiment.algorithm, experiment.engine
    state = replace(experiment.sketch(), stage=number)
    program = algorithm.local_program(rounds.visible_to_server(state, LocalProgram(())))
    ids = algorithm.cohort(
        rounds.visible_to_server(state, program), rounds.settings_of(algorithm, state).draw
    )
    rows = ids if evaluated is None else torch.cat([ids, evaluated])
    state = replace(experiment.sketch(rows), stage=number)
    observe: tuple[Step, ...] = ()
    if evaluator is not None:
        first = next(iter(rounds.deployments(algorithm, state, ids[:1]).values()))
        observe = evaluator.observers(first, common=False)
    varies = any(isinstance(step, Phase) and step.until is not None for step in program.steps)
    costs: list[_Cost] = []
    for _ in range(LATER if varies else 1):
        settings = rounds.settings_of(algorithm, state)
        train = partial(rounds.train, algorithm, engine, state, settings, ids=ids, observe=observe)
        program = algorithm.local_program(rounds.visible_to_server(state, LocalProgram(())))
        for _ in range(1 if costs else 2):
            begin = time.perf_counter()
            trained = train(program=program)
            seconds = time.perf_counter() - begin - trained.results.observe_seconds
            if seconds > LONG:
                break
        begin = time.perf_counter()
        state = rounds.exchange(algorithm, state, trained).state
        seconds += time.perf_counter() - begin
        costs.append(_Cost(seconds, int(trained.results.steps.sum())))
    return _Measured(ids, settings, trained, state, costs)
