"""One round: cohort, local programs, store, aggregate, reply. No files, no judging."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.client.program import LocalProgram, Step
from flbench.config import Config
from flbench.engine.base import Engine, RoundSettings
from flbench.rng import Draw
from flbench.tree import put_, take
from flbench.types import Dispatch, Message, Results, Stage, State, Update
from flbench.wire import row_bytes, seal, seal_dispatch, shared_bytes


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


def settings_of(config: Config, algorithm: Algorithm, state: State, stage: Stage) -> RoundSettings:
    """Return what holds for all clients of the round that follows `state`."""
    key = (state.round, state.turn + 1) if stage.setup else (state.round,)
    factor = config.train.schedule.factor(state.round, config.train.rounds)
    return RoundSettings(config.train, Draw(config.seed, key, algorithm.setting.clients), factor)


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
        ids: [K] the clients; None lets the method draw its cohort, or takes all in a set-up stage.
        program: None for the method's own.
        observe: steps after the last one, for figures alone.
    """
    program = program or algorithm.program(visible(state, LocalProgram(())))
    seen = visible(state, program)
    if ids is None and algorithm.stages()[state.stage].setup:
        ids = torch.arange(settings.draw.clients)
    elif ids is None:
        ids = algorithm.cohort(seen, settings.draw)
    meter = Meter(algorithm, seen)
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

    A round whose clients all diverged changes nothing but the round's number.
    """
    stage = algorithm.stages()[state.stage]
    program, results = trained.program, trained.results
    update, links, sent = Update(), None, Message()
    if len(results.ids):
        sent = seal(results.sent)
        stored = {name: value for name, value in sent.values.items() if name in program.keeps}
        put_(state.clients, results.ids, {**results.kept, **stored})
        seen = visible(state, program)
        links = algorithm.links(seen, results.ids)
        # What a client does not send, the server does not see: its loss neither.
        silent = torch.full_like(results.losses, torch.nan)
        brought = replace(results, sent=sent, kept={}, observed={}, losses=silent)
        update = algorithm.aggregate(seen, brought)
    reply = Message() if update.reply is None else seal(update.reply)
    put_(state.clients, results.ids, reply.values, reply.mask)
    state.visits[results.ids] += 1
    return Exchange(
        advance(state, stage, update),
        dict(update.metrics),
        _costs(stage, trained, sent, reply, links),
    )


def visible(state: State, program: LocalProgram) -> State:
    """Return the state as the server may see it: of what clients keep, only what they send too."""
    return replace(
        state, clients={name: rows for name, rows in state.clients.items() if name in program.sends}
    )


def advance(state: State, stage: Stage, update: Update) -> State:
    """Return the state after a round, in the next stage if this one is done."""
    turn = state.turn + 1
    over = turn >= stage.rounds
    return replace(
        state,
        stage=state.stage + over,
        turn=0 if over else turn,
        round=state.round + (not stage.setup),
        server={**state.server, **update.server},
    )


class Meter:
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
        return seal_dispatch(dispatch)

    def total(self) -> int:
        """Return the bytes that went down."""
        return sum(self._bytes.values())


def _costs(
    stage: Stage, trained: Trained, sent: Message, reply: Message, links: Tensor | None
) -> dict[str, float]:
    up, results = row_bytes(sent), trained.results
    costs: dict[str, float] = {"down_bytes": trained.down, "up_bytes": 0, "peer_bytes": 0}
    if links is None:
        costs["down_bytes"] += int(row_bytes(reply).sum())
        costs["up_bytes"] = int(up.sum())
    else:
        # A payload goes to each other client that mixes it: the non-zero rows of its column.
        edges = (links != 0) & ~torch.eye(len(links), dtype=torch.bool)
        costs["peer_bytes"] = int((edges.sum(dim=0) * up).sum())
    if stage.setup:
        costs = {"setup_bytes": sum(costs.values())}
    costs["trainings"] = len(results.ids) + len(results.failures)
    costs["without_step"] = int((results.steps == 0).sum())
    costs["diverged"] = len(results.failures)
    losses = results.losses[~results.losses.isnan()]
    return {**costs, "loss": float(losses.mean())} if len(losses) else costs
