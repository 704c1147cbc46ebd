"""The federated loop: it runs rounds, evaluates models and writes metrics and checkpoints."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from pydantic import BaseModel, ConfigDict

from flbench.algorithms.base import Algorithm
from flbench.callbacks.callback_list import CallbackList
from flbench.callbacks.run_view import Memory, RunView
from flbench.client.logged import LOGGED
from flbench.client.program import LocalProgram, Step
from flbench.config.schema import Config
from flbench.core.errors import CallbackError, DivergedError, RunError, UserError
from flbench.core.types import Results, Stage, State, Tree
from flbench.engine.base import RoundSettings
from flbench.experiment import own_methods, rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.evaluation_tables import group_rows
from flbench.experiment.interrupts import Interrupts
from flbench.experiment.predictions import Evaluation
from flbench.experiment.run_folder import RunFolder
from flbench.reports.terminal import told
from flbench.results.metrics_file import Row
from flbench.results.summary import RunningSummary, Summary
from flbench.workers.pool import LostError


class Seconds(BaseModel):
    """Wall-clock time that a run has spent, by purpose, in seconds.

    Attributes:
        train: Time of training rounds.
        evaluate: Time of evaluations, also of those of the cohort's models right after local
            training.
        write: Time of writing checkpoints, and the tables of the finished run. Those files that
            contain these times, report.html and summary.json, are written afterwards.
        total: Time of the whole run: its preparation, and the times above.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    train: float = 0.0
    evaluate: float = 0.0
    write: float = 0.0
    total: float = 0.0

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        """Add the time that the block takes to one purpose and to the total.

        Args:
            purpose: `train`, `evaluate` or `write`.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            setattr(self, purpose, getattr(self, purpose) + spent)
            self.total += spent


@dataclass
class FederatedLoop:
    """Runs the rounds of an experiment from a given state to the end.

    Attributes:
        experiment: The experiment.
        evaluator: Evaluator of its models.
        folder: Run folder that metrics and checkpoints are written to.
        callbacks: The callbacks of the run.
        seconds: Time spent so far, including the time before a resume.
        config: Configuration of the run.
        algorithm: The method.
        last: Scores of the last evaluation; None before the first.
        state: State after the last round.
        memory: What callbacks remember and have asked for.
        summary: Content of summary.json; None before the run is finished.
        running: Best and last evaluated round, and totals, of the metrics written so far.
        saved_at: Time of `time.monotonic` of the last checkpoint, or of the begin.
        saved: Round of the last checkpoint; None if there is no checkpoint.
        stale: [N] bool: clients whose leaves may have changed since the last evaluation.
    """

    experiment: Experiment
    evaluator: Evaluator
    folder: RunFolder
    callbacks: CallbackList
    seconds: Seconds
    config: Config = field(init=False)
    algorithm: Algorithm = field(init=False)
    last: Evaluation | None = None
    state: State = field(init=False)
    memory: Memory = field(default_factory=Memory)
    summary: Summary | None = None
    running: RunningSummary = field(init=False)
    saved_at: float = field(default_factory=time.monotonic)
    saved: int | None = None
    stale: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.config, self.algorithm = self.experiment.config, self.experiment.algorithm
        self.stale = torch.ones(self.experiment.federation.clients, dtype=torch.bool)
        self.running = RunningSummary(self.folder.rows, self.config.evaluation.best)

    def view(self) -> RunView:
        """Return what callbacks see of the run now."""
        federation = self.experiment.federation
        return RunView(
            config=self.config,
            path=self.folder.path,
            clients=federation.clients,
            client_names=tuple(federation.partition.names),
            class_names=tuple(federation.dataset.classes),
            module=MappingProxyType(dict(self.experiment.module)),
            loss=self.folder.newest.get("train/loss", math.nan),
            rows=tuple(self.folder.rows),
            metrics=MappingProxyType(self.folder.newest),
            summary=deepcopy(self.summary),
            state=self.state,
            memory=self.memory,
            seconds=MappingProxyType(vars(self.seconds).copy()),
            tell=self.callbacks.on_note,
            deployed=self._weights_of,
        )

    def begin(self, state: State, memory: Memory) -> None:
        """Tell the callbacks that the run begins or resumes.

        Args:
            state: State to start or resume from.
            memory: What the checkpoint stores for callbacks; empty for a new run.

        Raises:
            CallbackError: A callback failed.
        """
        self.state, self.memory = state, memory
        self.saved = state.round if self.folder.checkpoint("last").exists() else None
        self.callbacks.load_state_dict(memory.callbacks)
        self.callbacks.call("on_run_start", self.view())
        self.callbacks.state_dict()  # one that cannot be saved fails before the first round

    def run(self, state: State) -> State:
        """Run the remaining rounds; write metrics and checkpoints during the run.

        Args:
            state: State to start or resume from.

        Returns:
            The state after the last round.

        Raises:
            KeyboardInterrupt: The user interrupted the run. The state has been saved, unless a note
                says why not.
            LostError: No process is left that trains; so with the state.
            RunError: A model has weights that are not finite, or the disk failed. Or a client
                diverged under `train.on_divergence=stop`, or a callback failed; then the state has
                been saved.
        """
        stages = self.algorithm.stages()
        self.state = state
        with Interrupts() as interrupts:
            try:
                # The run may have been interrupted between a round and its evaluation.
                if state.round:
                    self._end_round(interrupts)
                # A set-up stage may follow the last round: only the stages end the loop.
                while not self._has_stopped():
                    stage, state = stages[self.state.stage], self.state
                    if state.stage_round == stage.rounds:
                        break
                    settings = rounds.settings_of(self.algorithm, state, setup=stage.setup)
                    with rounds.seeded_method(self.algorithm, settings.draw):
                        self.state, rows = self.round(stage, settings, interrupts)
                    self._notify("on_round_end", _by_name(rows))
                    if not stage.setup:
                        self._end_round(interrupts)
                    interrupts.check()
            except (KeyboardInterrupt, LostError):
                # An interrupted round has changed nothing.
                saving = f"saving the state of round {self.state.round} to {self.folder.path}"
                try:
                    with told(saving, lambda said: self.callbacks.on_note(*said)):
                        self.save()
                except (UserError, RunError) as failure:  # of a callback
                    self.callbacks.on_note(str(failure))
                raise
        return self.state

    def round(
        self, stage: Stage, settings: RoundSettings, interrupts: Interrupts
    ) -> tuple[State, list[Row]]:
        """Run one round and write its costs and, if an evaluation is due, its metrics.

        If the method groups its clients for this purpose (`Algorithm.cohort_groups`), the accuracy
        of the cohort before and after local training and after aggregation is written too.

        Args:
            stage: Current stage.
            settings: Settings of the round.
            interrupts: Handler of signals, which may interrupt training.

        Returns:
            The state after the round, and the new rows of metrics.csv.

        Raises:
            KeyboardInterrupt: A signal interrupted training; nothing has changed.
            RunError: A client diverged under `train.on_divergence=stop`, or the disk failed.
        """
        state, evaluator = self.state, self.evaluator
        settings = replace(settings, storage=self.experiment.storage)
        number = state.round + (not stage.setup)  # after this round
        evaluated = not stage.setup and self._is_evaluation_due(number)
        groups = None
        if not stage.setup:
            seen = rounds.visible_to_server(state, LocalProgram(()))
            groups = self.algorithm.cohort_groups(seen)
        with self.seconds.measure("train"):
            observers: tuple[Step, ...] = ()
            if evaluated or groups is not None:
                models = rounds.deployments(self.algorithm, state, torch.tensor([0]))
                first, common = next(iter(models.values())), self._is_common_evaluation_due(number)
                observers = evaluator.observers(first, common=common)
            with interrupts.allowed():
                trained = rounds.train(
                    self.algorithm, self.experiment.engine, state, settings, observe=observers
                )
        results = trained.results
        self.seconds.train -= results.observe_seconds
        self.seconds.evaluate += results.observe_seconds
        self._report_failures(results)
        if groups is not None:
            # The exchange writes into the clients' leaves, so this evaluation precedes it.
            with self.seconds.measure("evaluate"), interrupts.allowed():
                before = evaluator.evaluate_cohort(state, settings, results.ids)
        with self.seconds.measure("train"):
            over = rounds.exchange(self.algorithm, state, trained)
            server = self.experiment.storage.of_server(over.state.server, state.server)
            self.folder.client_rows.changed(results.ids)
            self.stale[results.ids] = True
        split = "setup" if stage.setup else "train"
        lines = [Row(number, split, "", name, value) for name, value in over.costs.items()]
        lines += [Row(number, "server", "", name, float(v)) for name, v in over.metrics.items()]
        if not stage.setup:
            lines += _logged(results, number)
        if evaluated:
            lines += evaluator.judge.rows(evaluator.observed(results, number), suffix="@local")
        if groups is not None:
            with self.seconds.measure("evaluate"):
                local = evaluator.observed(results, number)
                after = evaluator.evaluate_cohort(over.state, settings, results.ids)
            moments = {"@before": before, "@local": local, "@aggregated": after}
            for suffix, evaluation in moments.items():
                lines += group_rows(replace(evaluation, round=number), groups, suffix)
        self.folder.add_metrics(lines)
        return replace(over.state, server=server), lines

    def _end_round(self, interrupts: Interrupts) -> None:
        """Evaluate and save the state after a round, as far as that is due.

        If a callback has asked for it, the run stops after this round; then both are due.
        """
        number = self.state.round
        self._stop_if_asked()
        if self._is_evaluation_due(number) and self.running.last != number:
            common = self._is_common_evaluation_due(number)
            found = self._evaluate(interrupts, common=common)
            self._notify("on_evaluation_end", _by_name(found))
            self._stop_if_asked()
        stopped, rows = self._has_stopped(), self.folder.rows
        needs_common = stopped and self.evaluator.has_common()
        if needs_common and not any(row[:2] == (number, "common") for row in rows):
            # In other runs this is a part of the evaluation after the last round.
            self._evaluate(interrupts, common=True)
        output, is_last = self.config.output, number == self.config.train.rounds
        is_old = time.monotonic() - self.saved_at >= output.checkpoint_seconds
        is_due = number % output.checkpoint_every == 0 and is_old
        if stopped or is_last or is_due or self.running.best == number:
            self.save()

    def _evaluate(self, interrupts: Interrupts, *, common: bool) -> list[Row]:
        """Evaluate all models and add the rows that metrics.csv does not have; return them."""
        settings = rounds.evaluation_settings(self.algorithm, self.state)
        with self.seconds.measure("evaluate"), interrupts.allowed():
            evaluator = self.evaluator
            if "test" not in evaluator.parts and self.state.round == self.config.train.rounds:
                evaluator = evaluator.with_probabilities()
            with own_methods.named(self.algorithm.config):
                self.last = evaluator.evaluate(
                    self.state, settings, common=common, stale=self.stale
                )
            self.stale[:] = False
            return self.folder.add_missing_metrics(evaluator.judge.rows(self.last))

    def save(self) -> None:
        """Write the checkpoint `last`, and `best` if the state is the best one so far.

        Both are one file with two names. The best state is the one with the highest validation
        accuracy, or what `evaluation.best` says. If that is the last round, `best` is written only
        where there is an older one, because `last` has the same content.

        Raises:
            RunError: The disk failed, or a callback cannot say what it remembers.
        """
        number = self.state.round
        is_last = number == self.config.train.rounds
        is_best = self.running.best == number
        is_best = is_best and (not is_last or self.folder.checkpoint("best").exists())
        names = ["best", "last"] if is_best else ["last"]
        self.memory.callbacks = self.callbacks.state_dict()
        with self.seconds.measure("write"):
            extra = {
                "seconds": vars(self.seconds),
                "rows": len(self.folder.rows),
                **self.memory.tree(),
            }
            self.folder.save_state(names, self.state, self.config.hash(), extra)
        self.saved_at, self.saved = time.monotonic(), number
        for name in names:
            self._notify("on_checkpoint", self.folder.checkpoint(name))

    def _notify(self, hook: str, argument: object) -> None:
        """Call a hook of the callbacks after a round. If a callback fails, save the state.

        Args:
            hook: Name of the hook.
            argument: Its argument besides the view of the run.

        Raises:
            CallbackError: A callback failed.
            UserError: A callback raised this error; so with other RunErrors.
        """
        if not self.callbacks:
            return
        try:
            self.callbacks.call(hook, self.view(), argument)
        except (UserError, RunError):
            if hook != "on_checkpoint":
                with suppress(CallbackError):  # the first one counts
                    self.save()
            raise

    def _stop_if_asked(self) -> None:
        """Let the run stop after this round if a callback has asked for it and rounds remain."""
        state, stop = self.state, self.memory.stop
        remain = state.stage_round < self.algorithm.stages()[state.stage].rounds
        if stop is not None and stop.round is None and remain:
            stop.round = state.round
            total = self.config.train.rounds
            self.view().note(f"stopped after round {stop.round} of {total}: {stop.reason}.")

    def _has_stopped(self) -> bool:
        return self.memory.stop is not None and self.memory.stop.round == self.state.round

    def _weights_of(self, state: State, client: int) -> Tree:
        """Return the parameters and buffers of the model that a client is evaluated with."""
        settings = rounds.evaluation_settings(self.algorithm, state)
        return next(self.evaluator.deployed(state, settings, torch.tensor([client])))

    def _is_evaluation_due(self, done: int) -> bool:
        return done % self.config.evaluation_period == 0 or self._is_common_evaluation_due(done)

    def _is_common_evaluation_due(self, done: int) -> bool:
        every, stop = self.config.evaluation.common.every, self.memory.stop
        if stop is not None and stop.round == done:
            return True
        return done == self.config.train.rounds or (every is not None and done % every == 0)

    def _report_failures(self, results: Results) -> None:
        """Report the clients that diverged.

        Raises:
            DivergedError: A client diverged under `train.on_divergence=stop`.
        """
        for failure in results.failures:
            who = self.experiment.federation.partition.called(failure.client)
            where = f"round {self.state.round + 1}, client {who}"
            text = f"{where}: {failure.reason}; left out of this round."
            if self.config.train.on_divergence == "stop":
                self.save()
                raise DivergedError(
                    f"{text} The run stops (train.on_divergence=stop). Lower the"
                    " learning rate, set train.clip, or leave such clients out with"
                    f" train.on_divergence=skip. The run so far is saved in {self.folder.path}"
                )
            self.callbacks.on_note(text)


def _by_name(rows: list[Row]) -> Mapping[str, float]:
    """Return values of metrics.csv by the full names of their metrics."""
    return MappingProxyType({row.full_name: row.value for row in rows})


def _logged(results: Results, number: int) -> Iterator[Row]:
    """Yield the cohort's means of what the user's LightningModule has logged as rows."""
    for name, values in results.observed.items():  # [K, 2]: value, and whether there is one
        if name.startswith(LOGGED) and (clients := float(values[:, 1].sum())):
            mean = float(values[:, 0].sum()) / clients
            yield Row(number, "log", "", name.removeprefix(LOGGED), mean)
