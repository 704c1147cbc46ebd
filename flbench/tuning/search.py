"""The search of a study: Ray Tune trains the trials that Optuna proposes.

A resumed study does the same search again: the same seed and the results so far, which are in the
folders of the trials, give the same proposals, and a trial that was interrupted goes on from its
checkpoint. Nothing of Ray Tune's own state is needed for it.
"""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, Final

import cloudpickle
from numpy.typing import NDArray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from flbench.config.sources import Layer
from flbench.core.errors import RunError, UserError
from flbench.core.wording import listed
from flbench.jobs.job import Job, Outcome
from flbench.jobs.progress import JobProgress
from flbench.jobs.resources import Resources
from flbench.results import study_folder
from flbench.results.study_folder import DIGITS, StoredStudy, Trial, best_trial
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.ray_tune import bundles, quiet, reason_of
from flbench.tuning.request import FACTOR, grace_of
from flbench.tuning.scores import by_round
from flbench.tuning.study import BEGUN, OTHER_METRIC, StudyFolder, TrialFolder, now
from flbench.tuning.trial import WORST, Base, of_study
from flbench.workers import ray_session
from flbench.workers.actor_pool import (
    NOTICE,
    OUT_OF_MEMORY,
    amounts,
    end_of_wait,
    nodes_have,
    why_lost,
)
from flbench.workers.pool import LostError
from flbench.workers.portable import portable
from flbench.workers.process_pool import SharedArray
from flbench.workers.ray_driver import RayDriver

NAMED: Final = 3  # trials that a sentence names
ALIKE: Final = 4  # trials with equal scores at the first rung, of which the user is told


def begin_again(folder: StudyFolder) -> None:
    """Let the trials of a resumed study begin again that `lost_in` returns.

    The trials of later batches of TPE are removed: Optuna proposed their parameters when the lost
    trials counted as failures.
    """
    header, study = folder.description(), study_folder.read(folder.path)
    size = header["batch" if header["search"] == "optuna" else "trials"]
    first: dict[str, int] = {}  # batch by method
    for one in lost_in(study):
        first.setdefault(one.method, one.index // size)
    for one in study.trials:
        if one.index // size > first.get(one.method, inf):
            path = folder.trial(one).path
            # A kill in between leaves no configuration with which another trial would continue.
            (path / "config.yaml").unlink(missing_ok=True)
            shutil.rmtree(path)
    for one in lost_in(study_folder.read(folder.path)):
        folder.trial(one).write(one, **BEGUN)


def lost_in(study: StoredStudy) -> list[Trial]:
    """Return the trials that have failed because their worker did, of methods without a winner.

    In a method that has a winner another trial could win after the trainings of the winner.
    """
    return [one for one in study.trials if one.lost and study.winner(one.method) is None]


def carry_out(
    driver: RayDriver, folder: StudyFolder, prepared: PreparedStudy, *, shown: bool = True
) -> None:
    """Train the trials of a study that have not ended, in the process of a driver.

    Raises:
        UserError: A trial that has begun has other parameters than Optuna proposes now.
        RunError: Ray Tune stopped before the end, trials waited too long for resources, or a server
            of Ray was lost.
    """
    federation = prepared.federation
    sent = replace(prepared, federation=federation.without_samples())
    given = portable(sent, cloudpickle.dumps), SharedArray(federation.x.numpy())
    # The process prints on the standard error of this one, unless a notebook or the program has
    # redirected it: this process then prints the lines of a file.
    is_redirected = sys.stderr is not sys.__stderr__
    with NamedTemporaryFile("r", encoding="utf-8") as lines:

        def show() -> None:
            sys.stderr.write(lines.read())

        try:
            driver.call(
                *(_carried_out, folder.path, folder.resume_command, *given, shown),
                lines.name if is_redirected else None,
                meanwhile=show,
            )
        finally:
            show()


def _carried_out(
    path: Path,
    resume: str,
    sent: PreparedStudy,
    samples: NDArray[Any],
    shown: bool,
    lines: str | None,
) -> None:
    """Train the trials of a study, which has been sent to this process without its samples."""
    prepared = replace(sent, federation=sent.federation.with_samples(samples))
    with ExitStack() as context:
        context.enter_context(prepared.parcel.opened())
        if lines is not None:
            file = context.enter_context(open(lines, "a", encoding="utf-8", buffering=1))
            context.enter_context(redirect_stderr(file))
        train(StudyFolder(path, resume), prepared, shown=shown)


class TrialJob(Job):
    """A trial, whose number stands in place of that of a repetition."""

    @property
    def which(self) -> str:
        return f"trial {self.repetition}"


class TrialProgress(JobProgress):
    """Progress of the trials of a study; see `JobProgress`."""

    def __init__(self, folder: StudyFolder, prepared: PreparedStudy) -> None:
        self._metric = prepared.request.metric
        self._trials = {
            (method, index): TrialJob(f"{method}/{index:03d}", method, "", "", index, config, {})
            for method, config in prepared.configs.items()
            for index in range(prepared.trials[method])
        }
        super().__init__([*self._trials.values()], folder, prepared.resources.kind)
        self._scores: dict[str, dict[int, float]] = {name: {} for name in prepared.configs}

    def begin_trial(self, trial: TrialFolder) -> None:
        """Note that a trial is being trained."""
        self.begin(self._trials[trial.method, trial.index])

    def evaluated(self, trial: TrialFolder, done: int, score: float) -> None:
        """Say once that the metric tells none of a method's first trials apart."""
        method, scores = trial.method, self._scores[trial.method]
        config = self._trials[method, trial.index].config
        rounds = config.train.rounds
        first = min(rounds, grace_of(method, rounds, config.evaluation_period))
        if done != first or trial.index in scores:
            return
        scores[trial.index] = round(score, DIGITS)
        if len(scores) == ALIKE and len({*scores.values()}) == 1:
            self.note(
                f"{method}: the validation {self._metric} is {score:.4f} in each of the first"
                f" {ALIKE} trials after {done} rounds. {OTHER_METRIC}"
            )

    def end_trial(self, one: Trial) -> None:
        """Note that a trial has ended, and print a line about it."""
        found = "" if one.score is None else f", validation {self._metric} {one.score:.4f}"
        reason = one.reason if one.state in ("failed", "diverged") else None
        outcome = Outcome(reason, seconds=(one.seconds or {}).get("total", 0.0))
        self.end(self._trials[one.method, one.index], reason, outcome, f"{one.state}{found}")


def train(folder: StudyFolder, prepared: PreparedStudy, *, shown: bool = True) -> None:
    """Train the trials of a study on the cluster to which this process is connected."""
    quiet()
    progress = TrialProgress(folder, prepared)
    progress.console.quiet = not shown
    scheduler = None
    if prepared.request.scheduler == "asha":
        rounds, every = prepared.config.train.rounds, prepared.config.evaluation_period
        grace = {name: grace_of(name, rounds, every) for name in prepared.spaces}
        scheduler = Halving(grace, rounds=rounds, seen=seen_in(folder, prepared))
    search = Search(folder, prepared, progress, scheduler)
    storage = folder.path / "search"
    tuner = _tuner(folder, prepared, search, scheduler, storage)
    shutil.rmtree(storage, ignore_errors=True)
    try:
        with progress.live():
            tuner.fit()
    except StudyStopped as stopped:
        raise LostError(str(stopped)) from None
    except tune.TuneError as error:
        last = str(error).strip().splitlines()[-1]
        raise RunError(f"Ray Tune failed ({last}). Resume with: {folder.resume_command}") from error
    except RuntimeError as error:
        # Ray Tune does not expect this error of a worker that it waits for.
        if OUT_OF_MEMORY not in str(error) or ray_session.are_lost():
            raise
        why = f"a trial failed: {why_lost(error)}"
        raise RunError(f"{why} Resume with: {folder.resume_command}") from error
    search.remove_leftovers()  # a worker may have saved a trial after it was stopped
    shutil.rmtree(storage, ignore_errors=True)
    if search.refused is not None:
        raise search.refused
    if not study_folder.read(folder.path).is_searched:
        raise LostError("Ray Tune stopped before the end.")


def _tuner(
    folder: StudyFolder,
    prepared: PreparedStudy,
    search: "Search",
    scheduler: "Halving | None",
    storage: Path,
) -> tune.Tuner:
    """Return the Tuner of a study; Ray keeps one copy of the samples for all trials."""
    resources, federation = prepared.resources, prepared.federation
    files = tuple((folder.path / f"partition.{kind}").read_bytes() for kind in ("npz", "json"))
    bases = {
        method: Base(
            Layer(config.tree(), prepared.origins[method]),
            (files[0], files[1]),
            prepared.parcel,
            folder.resume_command,
        )
        for method, config in prepared.configs.items()
    }
    function = tune.with_parameters(
        of_study,
        study=folder.path,
        bases=bases,
        metric=prepared.request.metric,
        samples=federation.x.numpy(),
        rest=federation.without_samples(),
    )
    return tune.Tuner(
        tune.with_resources(function, bundles(resources)),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=scheduler,
            num_samples=-1,
            max_concurrent_trials=resources.concurrent,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=storage.name,
            storage_path=str(storage.parent),
            failure_config=tune.FailureConfig(max_failures=resources.retries),
            callbacks=[Events(search, resources)],
            verbose=0,
        ),
    )


class Search(Searcher):  # type: ignore[misc]
    """Hands out the trials of all methods, one method after the other, and records how they end.

    Args:
        folder: Study folder.
        prepared: The study.
        progress: Progress of the trials.
        scheduler: What stops trials; None for nothing. Ray Tune may end a trial early because its
            worker died; that one is handed out again.

    Attributes:
        progress: Progress of the trials.
        trials: Folders of trials by Ray Tune's id.
        refused: Why nothing is handed out any more; None if nothing is wrong.
    """

    def __init__(
        self,
        folder: StudyFolder,
        prepared: PreparedStudy,
        progress: TrialProgress,
        scheduler: "Halving | None",
    ) -> None:
        super().__init__()
        self._study, self._prepared, self.progress = folder, prepared, progress
        self._scheduler, self._proposals = scheduler, prepared.proposals()
        self._known: dict[str, dict[int, Trial]] = {method: {} for method in self._proposals}
        for one in folder.trials():
            self._known[one.method][one.index] = one
        self._begun: set[str] = set()
        self.trials: dict[str, TrialFolder] = {}
        self.refused: UserError | None = None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of the next trial; None while other trials must end first."""
        is_over = True
        for method, proposals in self._proposals.items():
            known = self._known[method]
            for index, params in enumerate(proposals.given(known)):
                trial, before = TrialFolder(self._study.path, method, index), known.get(index)
                if before is not None and before.params != params:
                    self.refused = UserError(
                        f"{trial.path} began with {before.params}, and Optuna proposes {params}"
                        " now: this is another version of it. Resume with that one, or start a new"
                        " study."
                    )
                    return str(Searcher.FINISHED)
                if trial.name in self._begun or (before and before.state != "running"):
                    continue
                self._begun.add(trial.name)
                self.trials[trial_id] = trial
                self.progress.begin_trial(trial)
                return {"method": method, "index": index, "params": params}
            ended = sum(one.state != "running" for one in known.values())
            is_over &= ended == self._prepared.trials[method]
        return str(Searcher.FINISHED) if is_over else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended. After an error, Ray Tune calls `Events.on_trial_error` too."""
        if not error:
            self.end(trial_id)

    def end(self, trial_id: str, reason: str | None = None) -> None:
        """Record how a trial ended: as its worker wrote, or that it was stopped or failed.

        Args:
            trial_id: Ray Tune's id.
            reason: Why its worker failed; None if it did not.
        """
        if reason is not None and ray_session.are_lost():
            return  # a resumed study continues it
        folder = self.trials[trial_id]
        known = self._known[folder.method]
        params = self._proposals[folder.method].given(known)[folder.index]
        seed, rounds = self._prepared.config.seed, self._prepared.config.train.rounds
        trial = folder.read() or folder.begin(params, seed=seed, rounds=rounds)
        if trial.state == "running":
            stopped = self._scheduler.stopped if self._scheduler else ()
            if reason is None and (folder.method, folder.index) not in stopped:
                self._begun.discard(folder.name)
                return
            state = "stopped" if reason is None else "failed"
            why = reason or "stopped by the scheduler."
            changes = {"state": state, "reason": why, "lost": reason is not None}
            trial = folder.write(trial, **changes, ended=now())
        known[folder.index] = trial
        self.remove_leftovers()
        self.progress.end_trial(trial)

    def remove_leftovers(self) -> None:
        """Remove the checkpoints of trials that have lost, unless all are kept.

        A trial has lost if it has ended and another one of its method is better, or if it has no
        score. It is never trained again: its metrics and its configuration are all that is read.
        """
        keeps_all = self._prepared.config.output.keep_trials == "all"
        for known in () if keeps_all else self._known.values():
            ended = [one for one in known.values() if one.state != "running"]
            best = best_trial(ended)
            for one in ended:
                if one is not best:
                    shutil.rmtree(self._study.trial(one).path / "checkpoints", ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: the study folder has all that a resumed study needs."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study folder has all that a resumed study needs."""


Seen = tuple[str, int, int, float]
"""An evaluation of a trial: method, number of the trial, rounds done, score."""


def seen_in(folder: StudyFolder, prepared: PreparedStudy) -> Iterator[Seen]:
    """Yield the evaluations of the trials that have begun."""
    metric = prepared.request.metric
    for one in folder.trials():
        for number, score in by_round(folder.trial(one).path, metric, WORST).items():
            yield one.method, one.index, number, score


class Halving(FIFOScheduler):  # type: ignore[misc]
    """Ray's asynchronous successive halving (ASHA), separately for each method.

    If methods shared one instance, trials of one method would be stopped because another method is
    better. The default trial always runs to the end.

    Args:
        grace: Number of rounds before a trial can be stopped, by method; see `grace_of`.
        rounds: Number of rounds of a complete trial.
        seen: Evaluations of trials before the study was resumed, in their order.

    Attributes:
        stopped: Method and number of the trials that are stopped early.
    """

    def __init__(self, grace: Mapping[str, int], *, rounds: int, seen: Iterable[Seen] = ()) -> None:
        super().__init__()
        self._rounds = rounds
        self._by_method = {
            method: ASHAScheduler(
                time_attr="round",
                metric="score",
                mode="max",
                max_t=max(rounds, first),
                grace_period=first,
                reduction_factor=FACTOR,
            )
            for method, first in grace.items()
        }
        self._known: set[tuple[str, int]] = set()
        # The driver may have died after a score was written and before its trial was stopped.
        last = {one[:2]: (one[2], self._decide(*one)) for one in seen}
        self.stopped = {  # ASHA "stops" trials that have done all rounds, too
            one
            for one, (done, decision) in last.items()
            if decision == TrialScheduler.STOP and done < rounds
        }

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Stop a trial that is not among the best third at a rung."""
        config, done = trial.config, result["round"]
        one = config["method"], config["index"]
        decision = self._decide(*one, done, result["score"])
        if config["index"] == 0 or done >= self._rounds:
            return str(TrialScheduler.CONTINUE)
        if decision == TrialScheduler.STOP:
            self.stopped.add(one)
        return str(TrialScheduler.STOP) if one in self.stopped else decision

    def _decide(self, method: str, index: int, done: int, score: float) -> str:
        """Return the decision of successive halving for a score after `done` rounds."""
        halving, trial = self._by_method[method], SimpleNamespace(trial_id=str(index))
        if (method, index) not in self._known:
            self._known.add((method, index))
            halving.on_trial_add(None, trial)
        return str(halving.on_trial_result(None, trial, {"round": done, "score": score}))


class StudyStopped(BaseException):
    """Ends Ray Tune's loop. After an Exception, Ray Tune would call its servers first."""


class Events(tune.Callback):  # type: ignore[misc]
    """Tells the search and the user what happens to trials; a wait that is too long ends the study.

    Ray finds another node for a trial whose node is lost, if there is one with its resources.
    """

    def __init__(self, search: Search, resources: Resources) -> None:
        self._search, self._progress, self._resources = search, search.progress, resources
        self._needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        self._since: float | None = None  # time since when trials wait and none runs
        self._due = NOTICE  # seconds of a wait after which the user is told next

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: Ray Tune's snapshots are not used to resume a study."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise StudyStopped if the trials wait too long for what is not there."""
        waiting, running = (
            [self._search.trials[one.trial_id].name for one in trials if one.status == status]
            for status in ("PENDING", "RUNNING")
        )
        if running or not waiting:
            self._since, self._due = None, NOTICE
            return
        now_is = time.monotonic()
        self._since = now_is if self._since is None else self._since
        waited, patience = now_is - self._since, self._resources.engine.wait_seconds
        if waited < min(self._due, patience):
            return
        self._due = waited + NOTICE
        sentence = (
            f"no trial has run for {waited:.0f} s. {listed(waiting, NAMED)}: waiting for"
            f" {amounts(self._needs)}, or for the start of a worker process."
            f" {nodes_have(self._needs)}"
        )
        if waited >= patience:
            raise StudyStopped(f"{sentence} {end_of_wait(patience)}")
        self._progress.note(sentence)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Look whether the scores of the trials differ."""
        folder = self._search.trials[trial.trial_id]
        self._progress.evaluated(folder, result["round"], result["score"])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count another attempt of a trial whose worker failed, and print a note."""
        if ray_session.are_lost():  # the worker was ended for this reason
            return
        folder = self._search.trials[trial.trial_id]
        if (known := folder.read()) is not None:
            folder.write(known, attempts=known.attempts + 1)
        self._progress.note(
            f"{folder.name} failed ({reason_of(trial)}), and resumes from its checkpoint."
        )

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record why a trial failed for the last time."""
        self._search.end(trial.trial_id, reason_of(trial))
