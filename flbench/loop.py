"""The federated loop: cohort, local programs, store, aggregate, reply, judge, save.

One direction, no back and forth.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm
from flbench.client.program import LocalProgram, Step
from flbench.config import Config
from flbench.engine.base import Engine, RoundSettings
from flbench.errors import RunError
from flbench.evaluate import PARTS, Evaluation, Evaluator
from flbench.figures import Judgement, best_round, rows_of
from flbench.interrupts import Interrupts
from flbench.metrics.tally import Tally
from flbench.rng import Draw
from flbench.tracking.folder import RunFolder
from flbench.tracking.metrics_file import Row
from flbench.tree import put_, take
from flbench.types import Dispatch, Message, Results, Stage, State, Update
from flbench.wire import row_bytes, seal, seal_dispatch, shared_bytes


class Reporter(Protocol):
    """What a run tells while it goes."""

    def begin(self, done: int, rounds: int) -> None:
        """Rounds done so far, and in all."""

    def round_done(self, done: int, loss: float) -> None:
        """A round is over; loss is the cohort's mean training loss."""

    def evaluated(self, done: int, figures: Mapping[tuple[str, str, str], float]) -> None:
        """Models were judged; figures by (split, protocol, metric)."""

    def warn(self, text: str) -> None:
        """Something the user must know."""


@dataclass
class Seconds:
    """Wall time by purpose."""

    train: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0

    @contextmanager
    def spend(self, purpose: str) -> Iterator[None]:
        """Add the time inside to a purpose and to the total."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            setattr(self, purpose, getattr(self, purpose) + spent)
            self.total += spent


@dataclass
class FederatedLoop:
    """Runs the rounds of one experiment from a state to the end.

    Attributes:
        config: of the experiment.
        algorithm: the method.
        engine: trains.
        evaluator: judges.
        judgement: which classes are rare and confusable.
        folder: where everything is written.
        reporter: is told how it goes.
        seconds: spent so far, also before a resume.
    """

    config: Config
    algorithm: Algorithm
    engine: Engine
    evaluator: Evaluator
    judgement: Judgement
    folder: RunFolder
    reporter: Reporter
    seconds: Seconds = field(default_factory=Seconds)
    last: Evaluation | None = None

    def run(self, state: State) -> State:
        """Return the state after the last round; write figures and checkpoints on the way.

        Raises: KeyboardInterrupt after saving, RunError if a client diverges under
            `on_divergence=stop` or the disk fails.
        """
        stages = self.algorithm.stages()
        rounds = sum(stage.rounds for stage in stages if not stage.setup)
        self.reporter.begin(state.round, rounds)
        with Interrupts() as interrupts:
            try:
                if (
                    state.round
                    and self._is_due(state.round, rounds)
                    and not self._was_judged(state.round)
                ):
                    self.judge(
                        state, rounds, interrupts
                    )  # a crash fell between a round and its judgement
                while state.stage < len(stages):
                    stage = stages[state.stage]
                    state = self.round(state, stage, rounds, interrupts)
                    if not stage.setup and self._is_due(state.round, rounds):
                        self.judge(state, rounds, interrupts)
                    every = self.config.output.checkpoint_every
                    if not stage.setup and (state.round % every == 0 or state.round == rounds):
                        self.save("last", state)
                    interrupts.check()
            except KeyboardInterrupt:
                # A round that is interrupted has changed nothing: `state` is that of the round
                # before.
                self.save("last", state)
                raise
        return state

    def round(self, state: State, stage: Stage, rounds: int, interrupts: Interrupts) -> State:
        """Return the state after one round."""
        algorithm = self.algorithm
        settings = settings_of(self.config, algorithm, state, stage)
        judged = not stage.setup and self._is_due(state.round + 1, rounds)
        with self.seconds.spend("train"):
            ids = (
                torch.arange(settings.draw.clients)
                if stage.setup
                else algorithm.cohort(state, settings.draw)
            )
            program = algorithm.program(state)
            meter = Meter(partial(algorithm.dispatch, visible(state, program)))
            with interrupts.welcome():
                results = self.engine.run(
                    program,
                    ids,
                    rows=partial(take, state.clients),
                    dispatch=meter,
                    settings=settings,
                    observe=self._observers(state, ids) if judged else (),
                )
            self._complain(results, state)
            sent = seal(results.sent)
            stored = {name: value for name, value in sent.values.items() if name in program.keeps}
            put_(state.clients, results.ids, {**results.kept, **stored})
            update = algorithm.aggregate(
                visible(state, program), replace(results, sent=sent, kept={}, observed={})
            )
            reply = Message() if update.reply is None else seal(update.reply)
            put_(state.clients, results.ids, reply.values, reply.mask)
            state.visits[results.ids] += 1
            done = advance(state, stage, update)
        rows = self._costs(
            stage, results, meter.total(), sent, reply, algorithm.links(state, results.ids)
        )
        split = "setup" if stage.setup else "train"
        lines = [Row(done.round, split, "", name, value) for name, value in rows.items()]
        lines += [
            Row(done.round, "server", "", name, value) for name, value in update.metrics.items()
        ]
        if judged:
            lines += rows_of(
                Evaluation(done.round, self._observed(results)), self.judgement, suffix="@local"
            )
        self.folder.add_metrics(lines)
        self.reporter.round_done(done.round, rows.get("loss", float("nan")))
        return done

    def judge(self, state: State, rounds: int, interrupts: Interrupts) -> None:
        """Judge all models after a round.

        Write the figures, and the state if it is the best so far.
        """
        every = self.config.evaluation.common.every
        common = state.round == rounds or (every is not None and state.round % every == 0)
        with self.seconds.spend("evaluate"), interrupts.welcome():
            evaluation = self.evaluator.evaluate(state, self.closing(state), common=common)
            rows = rows_of(evaluation, self.judgement)
        self.last = evaluation
        self.folder.add_metrics(rows)
        if best_round(self.folder.rows) == state.round and state.round != rounds:
            self.save("best", state)
        self.reporter.evaluated(
            state.round, {(row.split, row.protocol, row.metric): row.value for row in rows}
        )

    def closing(self, state: State) -> RoundSettings:
        """Return the settings with which the models after a round are judged.

        Those of that round.
        """
        return settings_of(
            self.config, self.algorithm, replace(state, round=state.round - 1), Stage("judge", 1)
        )

    def save(self, name: str, state: State) -> None:
        """Write a checkpoint."""
        extra = {"seconds": vars(self.seconds), "rows": len(self.folder.rows)}
        self.folder.save_state(name, state, self.config.hash(), extra)

    def _is_due(self, done: int, rounds: int) -> bool:
        return done % self.config.evaluation.every == 0 or done == rounds

    def _was_judged(self, done: int) -> bool:
        return any(
            row.round == done and row.protocol == "personal" for row in reversed(self.folder.rows)
        )

    def _observers(self, state: State, ids: Tensor) -> tuple[Step, ...]:
        """Return the steps that judge the cohort's models right after local training (E-local)."""
        first = next(iter(self.algorithm.deploy(state, ids[:1]).values()))
        return (*self.evaluator.recalibrate, *self.evaluator.collectors(first))

    def _observed(self, results: Results) -> dict[tuple[str, str], Tally]:
        federation = self.evaluator.federation
        tallies = {}
        for part in PARTS:
            tally = Tally.empty(federation.clients, federation.classes)
            if len(results.ids):
                tally.add_(results.ids, results.observed[f"{part}.confusion"])
            tallies["personal", part] = tally
        return tallies

    def _complain(self, results: Results, state: State) -> None:
        """Say which clients diverged, and stop if the configuration says so."""
        for failure in results.failures:
            where = f"round {state.round + 1}, client {failure.client}"
            text = f"{where}: {failure.reason}; left out of this round."
            if self.config.train.on_divergence == "stop":
                self.save("last", state)
                raise RunError(
                    f"{text} The run stops (train.on_divergence=stop). Lower train.optimizer.lr"
                    " or set train.clip,"
                    " or leave such clients out: train.on_divergence=skip. Saved so far:"
                    f" {self.folder.path}"
                )
            self.reporter.warn(text)

    def _costs(
        self,
        stage: Stage,
        results: Results,
        dispatched: int,
        sent: Message,
        reply: Message,
        links: Tensor | None,
    ) -> dict[str, float]:
        """Return what a round cost (bytes by direction, trainings) and the cohort's mean training
        loss.
        """
        up = row_bytes(sent)
        costs: dict[str, float] = {"down_bytes": dispatched, "up_bytes": 0, "peer_bytes": 0}
        if links is None:
            costs["down_bytes"] += int(row_bytes(reply).sum())
            costs["up_bytes"] = int(up.sum())
        else:
            # A client's payload goes to each other client that mixes it: the non-zero rows of its
            # column.
            edges = (links != 0) & ~torch.eye(len(links), dtype=torch.bool)
            costs["peer_bytes"] = int((edges.sum(dim=0) * up).sum())
        if stage.setup:
            costs = {"setup_bytes": sum(costs.values())}
        costs["trainings"] = len(results.ids) + len(results.failures)
        costs["without_step"] = int((results.steps == 0).sum())
        costs["diverged"] = len(results.failures)
        losses = results.losses[~results.losses.isnan()]
        return {**costs, "loss": float(losses.mean())} if len(losses) else costs


def settings_of(config: Config, algorithm: Algorithm, state: State, stage: Stage) -> RoundSettings:
    """Return what holds for all clients of the round that follows `state`."""
    key = (state.round, state.turn + 1) if stage.setup else (state.round,)
    factor = config.train.schedule.factor(state.round, config.train.rounds)
    return RoundSettings(config.train, Draw(config.seed, key, algorithm.setting.clients), factor)


class Meter:
    """Asks the algorithm what it dispatches, seals it, and counts the bytes per client."""

    def __init__(self, dispatch: "partial[Dispatch]") -> None:
        self._dispatch = dispatch
        self._bytes: dict[int, int] = {}  # by client: an engine may ask again after a worker died

    def __call__(self, ids: Tensor) -> Dispatch:
        """Return the sealed dispatch for clients `ids` [K]."""
        dispatch = self._dispatch(ids)
        shared, rows = shared_bytes(dispatch.shared), row_bytes(dispatch.rows)
        for k, client in enumerate(ids.tolist()):
            self._bytes[client] = shared + (int(rows[k]) if len(rows) else 0)
        return seal_dispatch(dispatch)

    def total(self) -> int:
        """Return the bytes that went down."""
        return sum(self._bytes.values())


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
