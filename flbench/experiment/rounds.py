"""One round: cohort, local programs, store, aggregate, reply. No files, no evaluating."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.client.program import LocalProgram, Phase, Step
from flbench.config.schema import Config
from flbench.core.rng import Draw
from flbench.core.tree import put_, take
from flbench.core.types import Dispatch, Message, Results, Stage, State, Tree, Update
from flbench.engine.base import Engine, RoundSettings
from flbench.experiment.communication import apply_mask, apply_masks, row_bytes, shared_bytes


@dataclass(frozen=True)
class Trained:
    """A cohort after its local programs; nothing is stored yet.

    Attributes:
        program: that each client did.
        results: what they brought.
        down: bytes that were dispatched to all of them.
    """

    program: LocalProgram
    results: Results
    down: int


@dataclass(frozen=True)
class Exchange:
    """A round that is over.

    Attributes:
        state: after it.
        metrics: the server's diagnostics.
        costs: bytes by direction, trainings, and the cohort's mean training loss if there is one.
    """

    state: State
    metrics: dict[str, float]
    costs: dict[str, float]


def settings_of(
    config: Config, algorithm: Algorithm, state: State, *, setup: bool = False
) -> RoundSettings:
    """Return what holds for all clients of the round that follows `state`.

    The rounds of a set-up stage, `setup`, have streams of their own: they do not advance the round.
    """
    key = (state.round, state.stage + 1, state.stage_round + 1) if setup else (state.round,)
    factor = config.train.schedule.factor(state.round, config.train.rounds)
    return RoundSettings(config.train, Draw(config.seed, key, algorithm.setting.clients), factor)


def training_state(algorithm: Algorithm, start: State) -> State:
    """Return the start in the longest stage that is no set-up, to measure what a round costs."""
    lengths = [0 if stage.setup else stage.rounds for stage in algorithm.stages()]
    return replace(start, stage=lengths.index(max(lengths)))


def train(
    algorithm: Algorithm,
    engine: Engine,
    state: State,
    settings: RoundSettings,
    *,
    ids: Tensor | None = None,
    program: LocalProgram | None = None,
    observe: tuple[Step, ...] = (),
) -> Trained:
    """Let a cohort do its local programs.

    Args:
        algorithm: the method.
        engine: that trains.
        state: before the round; unchanged after it.
        settings: of the round.
        ids: [K] the clients; None lets the method draw its cohort.
        program: None for the method's own.
        observe: steps after the last one, for figures alone.
    """
    program = program or algorithm.program(visible_to_server(state, LocalProgram(())))
    seen = visible_to_server(state, program)
    if ids is None:
        ids = algorithm.cohort(seen, settings.draw)
    meter = DispatchMeter(algorithm, seen)
    results = engine.run(
        program,
        ids,
        rows=partial(take, state.clients),
        dispatch=meter,
        settings=settings,
        observe=observe,
    )
    return Trained(program, results, meter.total())


def exchange(algorithm: Algorithm, state: State, trained: Trained) -> Exchange:
    """Store what the cohort keeps, let the server see what it sent, and store the reply.

    `state.clients`, `state.participation_count` and `state.stale` are written in place. A round whose clients
    all diverged changes nothing but the round's number.

    Raises: ValueError if the program keeps a leaf that `init` gave no client.
    """
    stage = algorithm.stages()[state.stage]
    program, results = trained.program, trained.results
    update, links, sent = Update(), None, Message()
    if len(results.ids):
        sent = apply_mask(results.sent)
        stored = {name: value for name, value in sent.values.items() if name in program.keeps}
        strange = sorted((set(results.kept) | set(stored)) - set(state.clients))
        if strange:
            raise ValueError(f"the program keeps {strange}, for which `init` made no rows")
        put_(state.clients, results.ids, {**results.kept, **stored})
        if len(algorithm.stages()) > 1:
            _mark_stale(state, results, stored)
        seen = visible_to_server(state, program)
        links = algorithm.links(seen, results.ids)
        # What a client does not send, the server does not see: its loss neither.
        silent = torch.full_like(results.losses, torch.nan)
        brought = replace(results, sent=sent, kept={}, observed={}, losses=silent)
        update = algorithm.aggregate(seen, brought)
    reply = Message() if update.reply is None else apply_mask(update.reply)
    update = replace(update, reply=reply)
    put_(state.clients, results.ids, reply.values, reply.mask)
    if _has_training(program):
        state.participation_count[results.ids] += 1
    moved = not algorithm.setting.net.names("all").isdisjoint(update.server)
    over = advance(state, algorithm.stages(), update)
    return Exchange(
        replace(over, is_initial=state.is_initial and not moved),
        dict(update.metrics),
        _costs(stage, trained, sent, update, links),
    )


def visible_to_server(state: State, program: LocalProgram) -> State:
    """Return the state as the server may see it: of what clients keep, only what they send too.

    Rows that a client changed in an earlier stage and has not sent since are zero.
    """
    clients = {name: rows for name, rows in state.clients.items() if name in program.sends}
    for name, stale in state.stale.items():
        if name in clients and bool(stale.any()):
            clients[name] = clients[name].clone()
            clients[name][stale] = 0
    return replace(state, clients=clients, stale={})


def _mark_stale(state: State, results: Results, stored: Tree) -> None:
    """Note which rows changed without being sent, in place."""
    for name in results.kept:
        stale = state.stale.setdefault(
            name, torch.zeros_like(state.participation_count, dtype=torch.bool)
        )
        stale[results.ids] = True
    for name in stored:
        if name in state.stale:
            state.stale[name][results.ids] = False


def _has_training(program: LocalProgram) -> bool:
    return any(isinstance(step, Phase) for step in program.steps)


def advance(state: State, stages: tuple[Stage, ...], update: Update) -> State:
    """Return the state after a round, in the next stage if this one is done and not the last."""
    stage, stage_round = stages[state.stage], state.stage_round + 1
    next_one = stage_round == stage.rounds and state.stage + 1 < len(stages)
    return replace(
        state,
        stage=state.stage + next_one,
        stage_round=0 if next_one else stage_round,
        round=state.round + (not stage.setup),
        server={**state.server, **update.server},
    )


class DispatchMeter:
    """Asks the method what it dispatches, seals it, and counts the bytes by client."""

    def __init__(self, algorithm: Algorithm, seen: State) -> None:
        self._algorithm = algorithm
        self._seen = seen
        self._bytes: dict[int, int] = {}  # by client: an engine may ask again after a worker died

    def __call__(self, ids: Tensor) -> Dispatch:
        """Return the sealed dispatch for clients `ids` [K]."""
        dispatch = self._algorithm.dispatch(self._seen, ids)
        shared, rows = shared_bytes(dispatch.shared), row_bytes(dispatch.rows)
        for k, client in enumerate(ids.tolist()):
            self._bytes[client] = shared + (int(rows[k]) if len(rows) else 0)
        return apply_masks(dispatch)

    def total(self) -> int:
        """Return the bytes that went down."""
        return sum(self._bytes.values())


def _costs(
    stage: Stage, trained: Trained, sent: Message, update: Update, links: Tensor | None
) -> dict[str, float]:
    results, reply = trained.results, update.reply or Message()
    up = row_bytes(sent) if sent.values else torch.zeros(len(results.ids), dtype=torch.int64)
    costs: dict[str, float] = {"down_bytes": trained.down, "up_bytes": 0, "peer_bytes": 0}
    if links is None:
        costs["down_bytes"] += int(row_bytes(reply).sum())
        costs["up_bytes"] = int(up.sum())
    else:
        # A payload goes to each other client that mixes it: the non-zero rows of its column.
        edges = (links != 0) & ~torch.eye(len(links), dtype=torch.bool)
        costs["peer_bytes"] = int((edges.sum(dim=0) * up).sum())
    costs["up_bytes"] += update.between
    costs["down_bytes"] += update.between
    if stage.setup:
        costs = {"setup_bytes": sum(costs.values())}
    trains = _has_training(trained.program)
    costs["trainings"] = (len(results.ids) + len(results.failures)) * trains
    costs["without_step"] = int((results.steps == 0).sum()) * trains
    costs["diverged"] = len(results.failures)
    losses = results.losses[~results.losses.isnan()]
    return {**costs, "loss": float(losses.mean())} if len(losses) else costs
