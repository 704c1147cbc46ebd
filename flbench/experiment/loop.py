"""The federated loop: rounds, evaluations and checkpoints, in one direction."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from flbench.algorithms.base import Algorithm
from flbench.client.program import Statistic, Step
from flbench.config.schema import Config
from flbench.core.errors import DivergedError
from flbench.core.types import Results, Stage, State
from flbench.engine.base import Engine, RoundSettings
from flbench.experiment import rounds
from flbench.experiment.evaluate import Evaluation, Evaluator
from flbench.experiment.evaluation_tables import ClassGroups, metric_rows
from flbench.experiment.interrupts import Interrupts
from flbench.experiment.run_folder import RunFolder
from flbench.metrics.confusion import ConfusionCounts
from flbench.results.metrics_file import Row
from flbench.results.summary import best_round


class Reporter(Protocol):
    """What a run tells while it goes."""

    def begin(self, done: int, rounds: int) -> None:
        """Rounds done so far, and in all."""

    def round_done(self, done: int, loss: float) -> None:
        """A round is over; loss is the cohort's mean training loss."""

    def evaluated(self, done: int, figures: Mapping[tuple[str, str, str], float]) -> None:
        """Models were evaluated; figures by (split, protocol, metric)."""

    def warn(self, text: str) -> None:
        """Something the user must know."""


@dataclass
class Seconds:
    """Wall time by purpose."""

    train: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
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
        evaluator: evaluates.
        evaluation: which classes are rare and confusable.
        folder: where everything is written.
        reporter: is told how it goes.
        seconds: spent so far, also before a resume.
        last: what the last evaluation found; None before the first.
    """

    config: Config
    algorithm: Algorithm
    engine: Engine
    evaluator: Evaluator
    class_groups: ClassGroups
    folder: RunFolder
    reporter: Reporter
    seconds: Seconds = field(default_factory=Seconds)
    last: Evaluation | None = None

    def run(self, state: State, until: int | None = None) -> State:
        """Return the state after the last round; write figures and checkpoints on the way.

        Args:
            state: to go on from.
            until: the round to stop after (default: the run's last).
        Raises: KeyboardInterrupt after saving, RunError if a client diverges under
            `on_divergence=stop` or the disk fails.
        """
        stages = self.algorithm.stages()
        total = self.config.train.rounds
        # A stage of set-up may follow the last round.
        stop = math.inf if until is None or until >= total else until
        self.reporter.begin(state.round, total)
        with Interrupts() as interrupts:
            try:
                # An interrupt can fall between a round and its evaluation.
                if (
                    state.round
                    and self._is_evaluation_due(state.round)
                    and not self._was_evaluated(state.round)
                ):
                    self.evaluate(state, interrupts)
                while state.stage_round < stages[state.stage].rounds and state.round < stop:
                    stage = stages[state.stage]
                    state = self.round(state, stage, interrupts)
                    if not stage.setup and self._is_evaluation_due(state.round):
                        self.evaluate(state, interrupts)
                    every = self.config.output.checkpoint_every
                    if not stage.setup and (state.round % every == 0 or state.round == total):
                        self.save("last", state)
                    interrupts.check()
            except KeyboardInterrupt:
                # An interrupted round has changed nothing: `state` is that of the round before.
                self.save("last", state)
                raise
        return state

    def round(self, state: State, stage: Stage, interrupts: Interrupts) -> State:
        """Return the state after one round; write what it cost."""
        evaluated = not stage.setup and self._is_evaluation_due(state.round + 1)
        settings = rounds.settings_of(self.config, self.algorithm, state, setup=stage.setup)
        with self.seconds.measure("train"):
            diagnostics = self.algorithm.diagnostics() if evaluated else ()
            observe = (*self._observers(state), *diagnostics) if evaluated else ()
            with interrupts.allowed():
                trained = rounds.train(
                    self.algorithm, self.engine, state, settings, observe=observe
                )
            self._report_failures(trained.results, state)
            over = rounds.exchange(self.algorithm, state, trained)
        number, split = over.state.round, "setup" if stage.setup else "train"
        lines = [Row(number, split, "", name, value) for name, value in over.costs.items()]
        lines += [Row(number, "server", "", name, value) for name, value in over.metrics.items()]
        if evaluated:
            evaluation = self._observed(trained.results, number)
            lines += metric_rows(evaluation, self.class_groups, suffix="@local")
            lines += _diagnosed(diagnostics, trained.results, number)
        self.folder.add_metrics(lines)
        self.reporter.round_done(number, over.costs.get("loss", float("nan")))
        return over.state

    def evaluate(self, state: State, interrupts: Interrupts) -> None:
        """Evaluate all models after a round; save the state if it is the best so far."""
        last = state.round == self.config.train.rounds
        with self.seconds.measure("evaluate"), interrupts.allowed():
            common = self._is_common_evaluation_due(state.round)
            evaluation = self.evaluator.evaluate(
                state, self.evaluation_settings(state), common=common
            )
            rows = metric_rows(evaluation, self.class_groups)
        self.last = evaluation
        self.folder.add_metrics(rows)
        if best_round(self.folder.rows) == state.round and not last:
            self.save("best", state)
        self.reporter.evaluated(
            state.round, {(row.split, row.protocol, row.metric): row.value for row in rows}
        )

    def evaluation_settings(self, state: State) -> RoundSettings:
        """Return the settings with which models are evaluated: those of the round before `state`."""
        before = replace(state, round=state.round - 1)
        return rounds.settings_of(self.config, self.algorithm, before)

    def save(self, name: str, state: State) -> None:
        """Write a checkpoint."""
        extra = {"seconds": vars(self.seconds), "rows": len(self.folder.rows)}
        self.folder.save_state(name, state, self.config.hash(), extra)

    def _is_evaluation_due(self, done: int) -> bool:
        return done % self.config.evaluation.every == 0 or self._is_common_evaluation_due(done)

    def _is_common_evaluation_due(self, done: int) -> bool:
        every = self.config.evaluation.common.every
        return done == self.config.train.rounds or (every is not None and done % every == 0)

    def _was_evaluated(self, done: int) -> bool:
        return any(
            row.round == done and row.protocol == "personal" for row in reversed(self.folder.rows)
        )

    def _observers(self, state: State) -> tuple[Step, ...]:
        """Return the steps that evaluate the cohort's models right after local training (E-local)."""
        deployments = self.algorithm.deploy(state, torch.tensor([0]))
        first = next(iter(deployments.values()))
        common = self._is_common_evaluation_due(state.round + 1)
        return (
            *self.evaluator.recalibration_steps(first),
            *self.evaluator.part_statistics(first),
            *(self.evaluator.common_statistics(first) if common else ()),
        )

    def _observed(self, results: Results, number: int) -> Evaluation:
        """Return what the observers found of round `number`; empty where all clients failed."""
        federation, counts_by_part = self.evaluator.federation, {}
        for part in (*self.evaluator.parts, "common"):
            counts = counts_by_part[part] = ConfusionCounts.empty(
                federation.clients, federation.classes
            )
            if f"{part}.confusion" in results.observed:
                counts.add_(results.ids, results.observed[f"{part}.confusion"])
        common = counts_by_part.pop("common")
        return Evaluation(
            number,
            {("personal", part): counts for part, counts in counts_by_part.items()},
            {"personal": common} if bool(common.evaluated.any()) else {},
        )

    def _report_failures(self, results: Results, state: State) -> None:
        """Say which clients diverged, and stop if the configuration says so."""
        for failure in results.failures:
            where = f"round {state.round + 1}, client {failure.client}"
            text = f"{where}: {failure.reason}; left out of this round."
            if self.config.train.on_divergence == "stop":
                self.save("last", state)
                raise DivergedError(
                    f"{text} The run stops (train.on_divergence=stop). Lower train.optimizer.lr"
                    " or set train.clip,"
                    " or leave such clients out: train.on_divergence=skip. Saved so far:"
                    f" {self.folder.path}"
                )
            self.reporter.warn(text)


def _diagnosed(diagnostics: tuple[Statistic, ...], results: Results, number: int) -> Iterator[Row]:
    """Yield the cohort's mean of what a method's diagnostics found."""
    for name, values in results.observed.items():
        for statistic in diagnostics:
            if len(values) and name.startswith(f"{statistic.name}."):
                key = name.removeprefix(f"{statistic.name}.")
                yield Row(number, "train", "", key, float(values.double().mean()))
