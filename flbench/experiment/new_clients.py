"""Evaluation of the clients that join after the training.

They have taken part in nothing: the run was that of a federation without them. After it, a second
experiment has all clients, those that trained with the ids 0 to M-1 and the new ones behind them.
Its state is that of the run, with rows of `init` for the new clients. A model is trained for k
epochs over the client's training part, on a copy that is discarded after its evaluation:

- k = 0: what the server would send, and what the method's hook `join` makes of it;
- k > 0: the fine-tuning of the method's deployment, if it has one; otherwise the method's local
  program. With `evaluation.adapt.train=own`, its phases train what clients keep, if they keep
  anything that is trained.

The protocols are called `new@K`, and `seen@K` for the clients that trained, from their own state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from flbench.algorithms.base import Joining
from flbench.client.program import GradFn, GradientHook, Phase, Step
from flbench.config.schema import ScheduleConfig
from flbench.core.rng import Draw
from flbench.core.tree import put_, take
from flbench.core.types import Context, Dispatch, Message, State, Tree
from flbench.engine.base import LocalWork, RoundSettings
from flbench.experiment import hook_checks
from flbench.experiment.assembly import Experiment
from flbench.experiment.communication import DispatchMeter, apply_mask, row_bytes
from flbench.experiment.engines import build_engine
from flbench.experiment.evaluate import BLOCK, Model
from flbench.experiment.predictions import Evaluation
from flbench.experiment.rounds import (
    as_received,
    seeded_method,
    training_state,
    visible_to_server,
)
from flbench.results.metrics_file import Row

NEW: Final = "new"
SEEN: Final = "seen"
GAP: Final = "gap_"
"""Prefix of a metric of the new clients minus that of the clients that trained."""


@dataclass(frozen=True)
class Adapted:
    """Models of some clients after a number of epochs.

    Attributes:
        evaluation: Their scores, under the protocol `personal`.
        received: Bytes that a client receives for it, as a mean over the clients.
        sent: Bytes that a client sends when it joins, as a mean over the clients.
        steps: Optimizer steps of a client, as a mean over the clients.
    """

    evaluation: Evaluation
    received: float
    sent: float
    steps: float


Found = Mapping[tuple[str, int], Adapted]
"""What was found, by group of clients (`new`, `seen`) and number of epochs."""


class Joined(NamedTuple):
    """What the new clients have done first.

    Attributes:
        state: State with rows for all clients.
        adapts: Whether the models of new clients are trained further.
        received: What each client has received.
        sent: Bytes that a new client has sent, as a mean over the new clients.
    """

    state: State
    adapts: bool
    received: DispatchMeter
    sent: float = 0.0


class NewClients:
    """Evaluates new clients; it has an engine of its own until it is closed.

    Args:
        experiment: The experiment whose training is over.
        warn: Function that is called with a sentence if the training of a client diverges.
    """

    def __init__(self, experiment: Experiment, warn: Callable[[str], None]) -> None:
        federation = experiment.federation.with_new_clients()
        self._config = experiment.config.evaluation.adapt
        # No learning rate is scaled here, neither by an engine nor by a method.
        setting = replace(
            experiment.algorithm.setting,
            clients=federation.clients,
            sizes=federation.sizes,
            train=experiment.algorithm.setting.train.altered(schedule=ScheduleConfig()),
        )
        self.algorithm = experiment.algorithm.with_setting(setting)
        self._trained = experiment.federation.clients  # M
        everyone = replace(
            experiment,
            federation=federation,
            algorithm=self.algorithm,
            engine=build_engine(experiment.config.engine, experiment.net, federation),
            judge=experiment.judge.of(federation),
            cached=None,  # the engine has the whole net, and samples of the new clients
        )
        self.experiment = everyone.with_workers(warn) if experiment.has_workers else everyone
        self._evaluator = self.experiment.evaluator(lambda text: warn(f"evaluation.adapt: {text}"))

    def close(self) -> None:
        """Close the engine."""
        self.experiment.engine.close()

    def evaluate(self, state: State) -> Found:
        """Evaluate the new clients after each number of epochs, and those that trained.

        Args:
            state: State of the run, of the clients that trained; it is not changed.

        Raises:
            DivergedError: A model that is not trained further has weights that are not finite.
        """
        with seeded_method(self.algorithm, self._draw, 3):
            joined = self._join(self.grown(state))
            groups = {NEW: torch.arange(self._trained, self.experiment.federation.clients)}
            if self._config.seen:
                groups[SEEN] = torch.arange(self._trained)
            found: dict[tuple[str, int], Adapted] = {}
            for who, ids in groups.items():
                models: dict[int, Adapted] = {}
                for epochs in self._config.finetune_epochs:
                    # Closed forms are the same after any number.
                    work = epochs if joined.adapts else 0
                    if work not in models:
                        models[work] = self._after(joined, ids, work, is_new=who == NEW)
                    found[who, epochs] = models[work]
            return found

    def rows(self, found: Found, number: int) -> list[Row]:
        """Return metrics as rows of metrics.csv.

        For each metric NAME, `gap_NAME` is that of the new clients minus that of the clients that
        trained, after equally many epochs.

        Args:
            found: What `evaluate` has found.
            number: Round of the state.
        """
        rows: list[Row] = []
        for (who, epochs), model in found.items():
            local, margins = (
                {(f"{who}@{epochs}", part): value for (_, part), value in tree.items()}
                for tree in (model.evaluation.local, model.evaluation.margins)
            )
            rows += self.experiment.judge.rows(Evaluation(number, local, margins=margins))
        values = {(row.split, row.protocol, row.metric): row.value for row in rows}
        for (split, protocol, metric), value in values.items():
            who, _, count = protocol.partition("@")
            seen = values.get((split, f"{SEEN}@{count}", metric))
            if who == NEW and seen is not None:
                rows.append(Row(number, split, protocol, GAP + metric, value - seen))
        return rows

    def table(self, found: Mapping[str, Found]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return header and lines of new_clients.csv: a line for each new client.

        Args:
            found: What `evaluate` has found, by moment (`last`, `best`).
        """
        header: tuple[str, ...] = ()
        lines: list[tuple[object, ...]] = []
        blank = self.experiment.sketch()
        for moment, models in found.items():
            for (who, epochs), model in models.items():
                if who != NEW:
                    continue
                tables = self.experiment.judge.tables({"last": (model.evaluation, blank)})
                _, columns, rows = next(iter(tables))
                header = (columns[0], "epochs", *columns[1:])
                lines += [
                    (moment, epochs, *row[1:]) for row in rows if int(str(row[1])) >= self._trained
                ]
        return header, lines

    def summary(self, found: Found) -> dict[str, Any]:
        """Return what summary.json says of the new clients: their number, bytes and steps."""
        mine = {epochs: model for (who, epochs), model in found.items() if who == NEW}
        return {
            "clients": self.experiment.federation.clients - self._trained,
            "train": self._config.train,
            "epochs": list(mine),
            "received_bytes": {str(k): round(model.received) for k, model in mine.items()},
            "sent_bytes": {str(k): round(model.sent) for k, model in mine.items()},
            "steps": {str(k): model.steps for k, model in mine.items()},
        }

    def grown(self, state: State) -> State:
        """Return the state of a run with rows and entries of `init` for the new clients.

        Args:
            state: State of the clients that trained; it is not changed.
        """
        start, trained = self.experiment.start(), self._trained
        put_(start.clients, torch.arange(trained), state.clients)
        count, steps, clients = start.participation_count, start.steps, len(start.steps)
        count[:trained], steps[:trained] = state.participation_count, state.steps
        new = torch.zeros(clients - trained, dtype=torch.bool)
        stale = {name: torch.cat([rows, new]) for name, rows in state.stale.items()}
        server = {
            name: grown(
                value, start.server.get(name), self.algorithm.client_axes(name), trained, clients
            )
            for name, value in state.server.items()
        }
        return replace(
            state,
            server=server,
            clients=start.clients,
            participation_count=count,
            steps=steps,
            stale=stale,
        )

    @property
    def _draw(self) -> Draw:
        """Random streams of the clients' training; no round has their key."""
        setting = self.algorithm.setting
        return Draw(setting.seed, (setting.rounds, 0), setting.clients)

    @property
    def _settings(self) -> RoundSettings:
        return RoundSettings(self.algorithm.setting.train, self._draw)

    def _join(self, state: State) -> Joined:
        """Do at the new clients what the method's `join` says; write their rows in place."""
        ids = torch.arange(self._trained, self.experiment.federation.clients)
        last = self._of_training(state)
        seen = visible_to_server(state, self.algorithm.program(replace(last, clients={})))
        joining = self.algorithm.joining(seen, ids[:1])
        if joining is None or not (joining.program.keeps or joining.aggregate):
            return Joined(state, joining is None or joining.adapts, DispatchMeter())
        hook_checks.kept(joining.program, state)
        received = DispatchMeter()

        def dispatched(some: Tensor) -> Dispatch:
            found = (self.algorithm.join(seen, some) or Joining()).dispatch
            hook_checks.dispatch(self.algorithm, "join", found, len(some))
            return received.counted(some, found)

        rows = partial(take, state.clients)
        work = LocalWork(joining.program, rows, dispatched, self._settings)
        results = self.experiment.engine.run(work, ids)
        put_(state.clients, results.ids, results.kept)
        if joining.aggregate is None or not len(results.ids):
            return Joined(state, joining.adapts, received)
        sent = apply_mask(results.sent)
        stored = {name: rows for name, rows in sent.values.items() if name in joining.program.keeps}
        put_(state.clients, results.ids, stored)
        update = joining.aggregate(seen, as_received(results, sent))
        hook_checks.update(self.algorithm, update, state, len(results.ids))
        reply = Message() if update.reply is None else apply_mask(update.reply)
        received.counted(results.ids, Dispatch(rows=reply))
        put_(state.clients, results.ids, reply.values, reply.mask)
        state = replace(state, server={**state.server, **update.server})
        return Joined(state, joining.adapts, received, int(row_bytes(sent).sum()) / len(ids))

    def _of_training(self, state: State) -> State:
        """Return a state in a stage that trains: the present one, or the longest."""
        is_setup = self.algorithm.stages()[state.stage].setup
        return training_state(self.algorithm, state) if is_setup else state

    def _after(self, joined: Joined, ids: Tensor, epochs: int, *, is_new: bool) -> Adapted:
        """Return the models of some clients after a number of epochs, on a copy."""
        evaluator, received = self._evaluator, joined.received.copy()
        model, steps = self._model(self._of_training(joined.state), epochs, received), 0
        evaluation = Evaluation(joined.state.round, evaluator.no_scores("personal"))
        statistics = evaluator.statistics(model.deployment, evaluator.parts)
        for some in torch.split(ids, min(BLOCK, evaluator.most_clients(evaluator.parts))):
            results = evaluator.run(model, some, statistics)
            steps += int(results.steps.sum())
            evaluator.add_observed_(evaluation, results)
        sent = joined.sent if is_new else 0.0
        return Adapted(evaluation, received.mean(ids), sent, steps / len(ids))

    def _model(self, state: State, epochs: int, meter: DispatchMeter) -> Model:
        """Return the model of the clients after k epochs.

        Clients whose training diverges are evaluated without it.

        Args:
            state: State with rows for all clients, in a stage that trains.
            epochs: Number of epochs k.
            meter: Counts what the clients receive.
        """
        algorithm, evaluator = self.algorithm, self._evaluator
        deployed = next(evaluator.models(state, self._settings))
        tuning = () if (own := deployed.deployment.program) is None else own.steps
        estimate = evaluator.recalibration_steps(deployed.deployment)

        def sent(some: Tensor) -> Dispatch:
            return meter.counted(some, deployed.dispatched(some))

        plain = deployed._replace(
            steps=(*estimate, *(step for step in tuning if not _has_length(step))),
            dispatched=sent,
            untrained=None,
        )
        if not epochs:
            return plain
        if any(map(_has_length, tuning)):
            steps = (*estimate, *self._scaled(tuning, frozenset(), epochs, state))
            return plain._replace(steps=steps, untrained=plain)
        program = algorithm.local_program(replace(state, clients={}))
        seen = visible_to_server(state, program)
        keeps = program.keeps if self._config.train == "own" else frozenset()

        def sent_in_round(some: Tensor) -> Dispatch:
            of_round = algorithm.dispatch(seen, some)
            return meter.counted(some, over(of_round, deployed.dispatched(some)))

        steps = (*self._scaled(program.steps, keeps, epochs, state), *estimate)
        return plain._replace(steps=steps, dispatched=sent_in_round, untrained=plain)

    def _scaled(
        self, steps: tuple[Step, ...], own: frozenset[str], epochs: int, state: State
    ) -> tuple[Step, ...]:
        """Return steps whose phases have this number of epochs.

        Phases that end by a rule of their own stay as they are, also for k = 0, and so do phases of
        a number of steps beside phases of epochs.

        Args:
            steps: Steps of a program.
            own: Leaves to train if some phase trains any of them: other phases are then left out.
            epochs: Number of epochs, at least 1.
            state: State with the clients' leaves.
        """
        names = [*self.algorithm.setting.net.parameters, *state.clients]
        phases = [step for step in steps if isinstance(step, Phase) and _has_length(step)]
        counted = [phase for phase in phases if phase.epochs is not None] or phases
        trained = {
            phase: frozenset(name for name in names if phase.trains(name)) & own
            for phase in counted
        }
        restricts = any(trained.values())
        found: list[Step] = []
        for step in steps:
            if not isinstance(step, Phase) or step not in trained:
                found.append(step)
                continue
            mine, phase = trained[step], replace(step, epochs=epochs, steps=None)
            if restricts and phase.gradient is None:
                phase = replace(phase, train=mine)
            elif restricts and phase.gradient is not None:  # the hook may read all its leaves
                phase = replace(phase, gradient=HoldOthers(phase.gradient, mine))
            if mine or not restricts:
                found.append(phase)
        return tuple(found)


@dataclass(frozen=True)
class HoldOthers:
    """Gradient hook: that of a phase, with a gradient of zero for all but some leaves.

    Attributes:
        hook: The hook of the phase.
        names: Names of the leaves that are trained.
    """

    hook: GradientHook
    names: frozenset[str]

    def __call__(self, context: Context, grad: GradFn) -> Tree:
        """Return the gradients, under the names of all parameters."""
        found = self.hook(context, grad)
        return {n: v if n in self.names else torch.zeros_like(v) for n, v in found.items()}


def _has_length(step: Step) -> bool:
    """Return whether a step is a phase of a given number of epochs or steps."""
    return isinstance(step, Phase) and step.until is None


def over(below: Dispatch, above: Dispatch) -> Dispatch:
    """Return both dispatches as one; tensors of `above` replace those of equal names in `below`."""
    replaced = above.shared.values.keys() | above.rows.values.keys()

    def merged(one: Message, other: Message) -> Message:
        values, mask = (
            {name: value for name, value in tree.items() if name not in replaced}
            for tree in (one.values, one.mask)
        )
        return Message(values | other.values, mask | other.mask)

    shared, rows = merged(below.shared, above.shared), merged(below.rows, above.rows)
    return Dispatch(shared, rows, {**below.numbers, **above.numbers}, below.leaves | above.leaves)


def grown(
    value: Tensor, blank: Tensor | None, axes: tuple[int, ...], trained: int, clients: int
) -> Tensor:
    """Return an entry of the server's tree for M clients as one for N > M clients.

    Args:
        value: The entry after the training.
        blank: What `init` makes of it for all clients.
        axes: Its axes of clients.
        trained: Number M of clients that trained.
        clients: Number N of all clients.

    >>> grown(torch.ones(2, 3), torch.zeros(4, 3), (0,), 2, 4).sum(dim=1).tolist()
    [3.0, 3.0, 0.0, 0.0]
    """
    if not axes:
        return value
    shape = [clients if axis in axes else size for axis, size in enumerate(value.shape)]
    # Another axis may have grown during the run, such as that of clusters.
    fits = blank is not None and list(blank.shape) == shape
    new = blank.clone() if blank is not None and fits else value.new_zeros(shape)
    new[tuple(slice(trained if axis in axes else None) for axis in range(value.ndim))] = value
    return new
