"""One round: draw the cohort, run local programs, store, aggregate, reply.

This module writes no files and evaluates no models.
"""

from collections.abc import ItemsView, Iterator, ValuesView
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment, is_of_user
from flbench.client.program import LocalProgram, Phase, Statistic, Step
from flbench.core.errors import UnknownNameError, did_you_mean
from flbench.core.rng import Draw, seeded
from flbench.core.tree import put_, take
from flbench.core.types import Dispatch, Message, Results, Stage, State, Tree, Update
from flbench.core.wording import listed
from flbench.engine.base import Engine, LocalWork, RoundSettings
from flbench.experiment import hook_checks, own_methods
from flbench.experiment.communication import DispatchMeter, apply_mask, row_bytes


@dataclass(frozen=True)
class Trained:
    """A cohort after its local programs; nothing is stored yet.

    Attributes:
        program: Local program that each client ran.
        results: Results of the cohort.
        down: Bytes that were dispatched to all clients together.
    """

    program: LocalProgram
    results: Results
    down: int


@dataclass(frozen=True)
class Exchange:
    """A completed round.

    Attributes:
        state: State after the round.
        metrics: Diagnostics of the server.
        costs: Bytes by direction (`up_bytes`, `down_bytes`, `peer_bytes`, or `setup_bytes`), the
            cohort's optimizer `steps` and `passes` of Statistics, counts of clients (`trainings`,
            `without_step`, `diverged`) and, if a client took a step, the mean training `loss`.
    """

    state: State
    metrics: dict[str, float]
    costs: dict[str, float]


class ServerView(dict[str, Tensor]):
    """The tensors that a method's server has; one that it lacks is an error with its name.

    Args:
        tree: The tensors.
        what: What they are, such as `state.clients`.
        cure: A sentence on how a tensor gets there.
    """

    def __init__(self, tree: Tree, what: str, cure: str) -> None:
        super().__init__(tree)
        self._what = what
        self._cure = cure

    def __missing__(self, name: str) -> Tensor:
        """Raise an UnknownNameError: there is no tensor of this name."""
        known = listed(self, 5)
        error = UnknownNameError(
            f"the method reads `{name}` in `{self._what}`, which has {known or 'no tensor'}."
            f"{did_you_mean(str(name), self)} {self._cure}"
        )
        error.is_of_server = self._cure == SERVER
        raise error

    def __reduce__(self) -> tuple[type[Tree], tuple[Tree]]:
        return dict, (dict(self),)


class SentView(ServerView):
    """What clients have sent; a tensor that an engine left on a GPU is copied when it is read."""

    def __getitem__(self, name: str) -> Tensor:
        value = super().__getitem__(name)
        if not value.is_cpu:
            self[name] = value = value.cpu()
        return value

    def __iter__(self) -> Iterator[str]:  # so that `dict(view)` and `{**view}` read each tensor
        return super().__iter__()

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def copy(self) -> Tree:
        """Return a dict of all tensors."""
        return dict(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or a default if clients have not sent it."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a tensor and return it."""
        self.get(name)  # copies it to the CPU
        return super().pop(name, *default)

    def items(self) -> Any:
        """Return names and tensors."""
        return ItemsView(self)

    def values(self) -> Any:
        """Return the tensors."""
        return ValuesView(self)


SENT: Final = (
    "The server has what clients send: add the name to `sends` of the LocalProgram, or read the"
    " tensor in a step of the program, where the client has it."
)
SERVER: Final = (
    "The server has what `init` and `aggregate` return: return a tensor of this name in `init`."
)


def settings_of(algorithm: Algorithm, state: State, *, setup: bool = False) -> RoundSettings:
    """Return the settings that hold for all clients of the round that follows a state.

    Args:
        algorithm: The method.
        state: State before the round.
        setup: Whether the round belongs to a set-up stage. Such rounds do not advance the round
            number, so their random streams are identified by stage and round of the stage as well.
    """
    key = (state.round, state.stage + 1, state.stage_round + 1) if setup else (state.round,)
    setting = algorithm.setting
    factor = setting.train.schedule.lr_factor(state.round, setting.rounds)
    return RoundSettings(setting.train, Draw(setting.seed, key, setting.clients), factor)


def evaluation_settings(algorithm: Algorithm, state: State) -> RoundSettings:
    """Return the settings of the round that led to a state, to evaluate its models."""
    return settings_of(algorithm, replace(state, round=max(0, state.round - 1)))


@contextmanager
def seeded_method(algorithm: Algorithm, draw: Draw, *part: int) -> Iterator[None]:
    """Return a context manager in which the code of a user's method draws from the run's seed.

    An exception of code of the user becomes a MethodError. The methods of flbench draw from streams
    of their own (`Draw.method_generator`).

    Args:
        algorithm: The method.
        draw: Random streams of the round.
        part: Numbers >= 0 that separate the uses of a round; none for the round itself.
    """
    with own_methods.named(algorithm.config), ExitStack() as stack:
        if is_of_user(algorithm):  # no client has this number
            stack.enter_context(seeded(draw.module_seed(draw.clients, *part)))
        yield


def deployments(algorithm: Algorithm, state: State, ids: Tensor) -> dict[str, Deployment]:
    """Return what `Algorithm.deploy` gives to some clients, which is the same in each call.

    What code of the user draws begins at a seed of the round; what it draws for a client's row of
    the dispatch begins at a seed of the round and the client. So a model depends neither on the
    calls before nor on the clients that it is computed together with.

    Args:
        algorithm: The method.
        state: State after a round.
        ids: Ids [K] of the clients.

    Raises:
        MethodError: The user's code raised an exception.
    """
    draw = evaluation_settings(algorithm, state).draw

    def found(some: Tensor, *part: int) -> dict[str, Deployment]:
        with seeded_method(algorithm, draw, 1, *part):
            models = algorithm.deployed(named(state), some)
            hook_checks.deployed(algorithm, models, len(some))
            return dict(models)

    models = found(ids)
    if not is_of_user(algorithm) or not any(one.dispatch.rows.values for one in models.values()):
        return models
    alone = [found(one, int(one)) for one in torch.split(ids, 1)]
    for name, model in models.items():
        rows = [one[name].dispatch.rows for one in alone]
        joined = Message(_joined([one.values for one in rows]), _joined([one.mask for one in rows]))
        models[name] = replace(model, dispatch=replace(model.dispatch, rows=joined))
    return models


def _joined(rows: list[Tree]) -> Tree:
    """Return trees [1, ...] of one client each as one tree [K, ...]."""
    return {name: torch.cat([one[name] for one in rows]) for name in rows[0]}


def training_state(algorithm: Algorithm, start: State) -> State:
    """Return the initial state moved to the longest stage that trains, to measure a round."""
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
    """Run the local programs of a cohort.

    Args:
        algorithm: The method.
        engine: Engine that trains the clients.
        state: State before the round; it is not changed.
        settings: Settings of the round.
        ids: Ids [K] int64 of the clients; None lets the method draw its cohort.
        program: Local program to run; None for the method's own.
        observe: Steps after the program whose results the method never sees, for metrics.
    """
    with naming(algorithm, state):
        program = program or algorithm.local_program(visible_to_server(state, LocalProgram(())))
        seen = visible_to_server(state, program)
        if ids is None:
            ids = algorithm.cohort(seen, settings.draw)
            hook_checks.cohort(algorithm, ids)
        meter = DispatchMeter()

        def dispatched(some: Tensor) -> Dispatch:
            sent = algorithm.dispatch(seen, some)
            hook_checks.dispatch(algorithm, "dispatch", sent, len(some))
            return meter.counted(some, sent)

        with hook_checks.unwritten(algorithm, "dispatch", "server", state.server):
            rows = partial(take, state.clients)
            results = engine.run(LocalWork(program, rows, dispatched, settings, observe), ids)
    return Trained(program, results, meter.total())


@contextmanager
def naming(algorithm: Algorithm, state: State, hook: str | None = None) -> Iterator[None]:
    """Return a context manager that adds method, stage and hook to an `UnknownNameError`.

    Args:
        algorithm: The method.
        state: State before the round.
        hook: The hook that is called; None if the message says what reads the tensor.
    """
    try:
        yield
    except UnknownNameError as error:
        name = getattr(algorithm, "name", type(algorithm).__name__)
        place = f"`algorithm.name={name}`, stage `{algorithm.stages()[state.stage].name}`"
        raise error.placed(place + (f", `{hook}`" if hook else "")) from error


def exchange(algorithm: Algorithm, state: State, trained: Trained) -> Exchange:
    """Store what the cohort keeps, aggregate what it sent, and store the server's reply.

    `clients`, `participation_count`, `steps` and `stale` of the state are written in place. If all
    clients of the round diverged, only the round number changes.

    Raises:
        UnknownNameError: A hook reads a tensor that the server does not have.
    """
    stage = algorithm.stages()[state.stage]
    program, results = trained.program, trained.results
    update, links, sent, reply = Update(), None, Message(), Message()
    if len(results.ids):
        sent = apply_mask(results.sent)
        stored = {name: value for name, value in sent.values.items() if name in program.keeps}
        put_(state.clients, results.ids, {**results.kept, **stored})
        if len(algorithm.stages()) > 1:
            _mark_stale(state, results, stored)
        seen = visible_to_server(state, program)
        received = as_received(results, sent)
        with hook_checks.unwritten(algorithm, "aggregate", "clients", state.clients):
            with naming(algorithm, seen, "links"):
                links = algorithm.links(seen, results.ids)
            with naming(algorithm, seen, "aggregate"):
                update = algorithm.aggregate(seen, received)
                hook_checks.update(algorithm, update, state, len(results.ids))
                reply = apply_mask(update.reply or reply)
    update = replace(update, reply=reply)
    put_(state.clients, results.ids, reply.values, reply.mask)
    if _has_training(program):
        state.participation_count[results.ids] += 1
    state.steps[results.ids] += results.steps
    moved = not algorithm.setting.net.names("all").isdisjoint(update.server)
    # The next stage begins if this one is completed and not the last one.
    is_over = state.stage_round + 1 == stage.rounds and state.stage + 1 < len(algorithm.stages())
    over = replace(
        state,
        stage=state.stage + is_over,
        stage_round=0 if is_over else state.stage_round + 1,
        round=state.round + (not stage.setup),
        server={**state.server, **update.server},
        is_initial=state.is_initial and not moved,
    )
    return Exchange(over, dict(update.metrics), _costs(stage, trained, sent, update, links))


def as_received(results: Results, sent: Message) -> Results:
    """Return the results that the server sees: training losses, for example, are not sent.

    Args:
        results: Results of a cohort.
        sent: What it sent, with masks applied.
    """
    return replace(
        results,
        sent=replace(sent, values=SentView(sent.values, "results.sent.values", SENT)),
        kept={},
        observed={},
        losses=torch.full_like(results.losses, torch.nan),
    )


def visible_to_server(state: State, program: LocalProgram) -> State:
    """Return the state with those kept leaves removed that the server must not read.

    Of the leaves that clients keep, the server sees those that the program sends as well. Rows that
    a client changed in an earlier stage and has not sent since are zero.

    Args:
        state: The complete state; it is not changed.
        program: Local program of the current stage.
    """
    clients = {name: rows for name, rows in state.clients.items() if name in program.sends}
    for name, stale in state.stale.items():
        if name in clients and bool(stale.any()):
            clients[name] = clients[name].clone()
            clients[name][stale] = 0
    return named(replace(state, clients=clients, stale={}))


def programs(algorithm: Algorithm, start: State) -> Iterator[tuple[str, LocalProgram]]:
    """Yield the local programs of a method with what they belong to: stages and deployments."""
    found = [
        (
            f"the stage `{stage.name}`",
            algorithm.local_program(replace(start, stage=number, clients={})),
        )
        for number, stage in enumerate(algorithm.stages())
    ]
    yield from found
    seen = visible_to_server(start, found[0][1])
    for name, model in algorithm.deployed(seen, torch.tensor([0])).items():
        if model.program is not None:
            yield f"the model `{name}`", model.program


def named(state: State) -> State:
    """Return a state whose trees name a tensor that they lack; see `ServerView`."""
    return replace(
        state,
        server=ServerView(state.server, "state.server", SERVER),
        clients=ServerView(state.clients, "state.clients", SENT),
    )


def _mark_stale(state: State, results: Results, stored: Tree) -> None:
    """Update `state.stale` in place: kept rows become stale, rows that were sent do not."""
    for name in results.kept:
        stale = state.stale.setdefault(
            name, torch.zeros_like(state.participation_count, dtype=torch.bool)
        )
        stale[results.ids] = True
    for name in stored:
        if name in state.stale:
            state.stale[name][results.ids] = False


def _has_training(program: LocalProgram) -> bool:
    """Return whether a program contains a phase of optimizer steps."""
    return any(isinstance(step, Phase) for step in program.steps)


def _costs(
    stage: Stage, trained: Trained, sent: Message, update: Update, links: Tensor | None
) -> dict[str, float]:
    """Return the costs of a round; see `Exchange.costs`.

    Args:
        stage: Stage of the round.
        trained: Results of the cohort.
        sent: Messages of the cohort with masks applied.
        update: Result of `aggregate`, with the mask of its reply applied.
        links: Mixing weights [K, K] of a decentralized method; None if clients send to the server.
    """
    results, reply = trained.results, update.reply or Message()
    up = row_bytes(sent) if sent.values else torch.zeros(len(results.ids), dtype=torch.int64)
    costs: dict[str, float] = {"down_bytes": trained.down, "up_bytes": 0, "peer_bytes": 0}
    if links is None:
        costs["down_bytes"] += int(row_bytes(reply).sum())
        costs["up_bytes"] = int(up.sum())
    else:
        # links [K, K]: row k weighs the payloads that client k mixes. The payload of client j is
        # sent once to every other client whose row has a non-zero entry in column j.
        edges = (links != 0) & ~torch.eye(len(links), dtype=torch.bool)
        costs["peer_bytes"] = int((edges.sum(dim=0) * up).sum())
    if stage.setup:
        costs = {"setup_bytes": sum(costs.values())}
    costs["steps"] = int(results.steps.sum())
    passes = sum(isinstance(step, Statistic) for step in trained.program.steps)
    costs["passes"] = passes * len(results.ids)
    trains = _has_training(trained.program)
    costs["trainings"] = (len(results.ids) + len(results.failures)) * trains
    costs["without_step"] = int((results.steps == 0).sum()) * trains
    costs["diverged"] = len(results.failures)
    losses = results.losses[~results.losses.isnan()]
    return {**costs, "loss": float(losses.mean())} if len(losses) else costs
