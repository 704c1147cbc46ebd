"""Carries out a study, or the part of it that is left, on Ray Tune."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import cloudpickle
import ray
from numpy.typing import NDArray
from ray import tune

from flbench.core.errors import RunError
from flbench.results import metrics_file
from flbench.tuning.callbacks import StudyStopped, TuneCallbacks
from flbench.tuning.deployments import score_at
from flbench.tuning.leftovers import remove_copies
from flbench.tuning.perturbing import perturbed
from flbench.tuning.plan import ENDS, SearchSettings, StudyPlan, winner
from flbench.tuning.prepare import PreparedStudy
from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.queue import JobQueue
from flbench.tuning.ray_tune import Reservations, bundles, quiet
from flbench.tuning.reported import of_deployment
from flbench.tuning.schedulers import EarlierScore, HalvingByMethod, population
from flbench.tuning.search_space import Space
from flbench.tuning.study import (
    Record,
    StudyFolder,
    TrainingJob,
    job_from_record,
    write_record,
)
from flbench.tuning.waits import Waits
from flbench.tuning.worker import TrialWorker
from flbench.workers import ray_session
from flbench.workers.actor_pool import OUT_OF_MEMORY, check_unchanged, digest, why_lost
from flbench.workers.pool import LostError
from flbench.workers.portable import portable
from flbench.workers.ray_driver import RayDriver


def is_over(folder: StudyFolder, prepared: PreparedStudy) -> bool:
    """Whether every trial of a study has ended."""
    return StudyPlan(prepared.samplers(), prepared.budget, folder.records()).is_over()


def begin_again(folder: StudyFolder) -> None:
    """Let trials of a resumed study begin again that have failed because their worker did.

    They do so if their method has no winner. Otherwise another trial could win after the final
    trainings of the winner.
    """
    for record in _lost(folder):
        again = {"state": "running", "reason": None, "ended": None, "lost": False}
        write_record(folder.path, job_from_record(record), record | again)


def how_to_resume(folder: StudyFolder, prepared: PreparedStudy) -> str | None:
    """Return the command that trains again what has failed because its worker did; None if nothing.

    It has half as many trainings at once if memory was the reason.
    """
    reasons = [str(record["reason"]) for record in _lost(folder)]
    if not reasons:
        return None
    if not any("memory" in reason for reason in reasons):
        return folder.resume_command
    return _with_fewer(folder, prepared)


def _with_fewer(folder: StudyFolder, prepared: PreparedStudy) -> str:
    """Return the command that resumes a study with half as many trainings at once, at least one."""
    command, fewer = folder.resume_command, max(1, prepared.resources.concurrent // 2)
    if command.endswith(")"):  # a call of fl.resume
        return f"{command[:-1]}, jobs={fewer})"
    return f"{command} --jobs {fewer}"


def _lost(folder: StudyFolder) -> list[Record]:
    """Return the records of the trials that `begin_again` lets begin again."""
    records = list(folder.records())
    won = {
        method: winner([record for record in records if record["method"] == method])
        for method in {record["method"] for record in records}
    }
    return [one for one in records if one.get("lost") and won[one["method"]] is None]


def carry_out(
    driver: RayDriver, folder: StudyFolder, prepared: PreparedStudy, *, shown: bool = True
) -> None:
    """Train the trials of a study that have not ended, in the process of a driver.

    Args:
        driver: The driver, which is that of `ray_resources.cluster(prepared.resources)`.
        folder: Study folder.
        prepared: The study.
        shown: Whether to show the progress.

    Raises:
        RunError: Ray Tune stopped before the end, trials waited too long for resources, a server
            of Ray was lost, or a trial changed the shared samples.
    """
    samples = driver.shared(prepared.federation.x.numpy())
    sent = replace(prepared, federation=prepared.federation.without_samples())
    with ExitStack() as files:
        given = portable(sent, cloudpickle.dumps), samples
        # The process prints on the standard error of this one, unless a notebook or the program has
        # redirected it: this process then prints the lines of a file.
        is_redirected = sys.stderr is not sys.__stderr__
        lines = files.enter_context(NamedTemporaryFile("r", encoding="utf-8"))

        def show() -> None:
            sys.stderr.write(lines.read())

        files.callback(show)
        driver.call(
            *(_carried_out, folder.path, folder.resume_command, *given, shown),
            lines.name if is_redirected else None,
            meanwhile=show,
        )


def _carried_out(
    path: Path,
    resume: str,
    sent: PreparedStudy,
    samples: NDArray[Any],
    shown: bool,
    lines: str | None,
) -> None:
    """Train the jobs of a study, which has been sent to this process without its samples."""
    prepared = replace(sent, federation=sent.federation.with_samples(samples))
    with ExitStack() as context:
        context.enter_context(prepared.parcel.opened())
        if lines is not None:
            file = context.enter_context(open(lines, "a", encoding="utf-8", buffering=1))
            context.enter_context(redirect_stderr(file))
        train(StudyFolder(path, resume), prepared, shown=shown)


def train(folder: StudyFolder, prepared: PreparedStudy, *, shown: bool = True) -> None:
    """Train the jobs of a study on the cluster to which this process is connected."""
    quiet()
    settings = prepared.settings
    records = list(folder.records())
    progress = ProgressTable(
        methods=tuple(prepared.spaces),
        metric=of_deployment(settings.metric, settings.deployment),
        trials=prepared.budget.trials,
        rounds=settings.rounds,
    )
    progress.console.quiet = not shown
    progress.add_ended(record for record in records if record["state"] in ENDS)
    progress.add_interrupted(record for record in records if record["state"] not in ENDS)
    losses: list[str] = []  # why Ray Tune has ended before its trials, by Ray's memory monitor
    with progress.live():
        while not _train(folder, prepared, records, progress, losses):
            records = list(folder.records())
            progress.add_interrupted(record for record in records if record["state"] not in ENDS)


def _train(
    folder: StudyFolder,
    prepared: PreparedStudy,
    records: Sequence[Record],
    progress: ProgressTable,
    losses: list[str],
) -> bool:
    """Train the jobs of a study that have not ended, pass by pass; return whether all have ended.

    Otherwise a node or a worker was lost, and those that are left must be trained with what the
    cluster has now. `losses` says why Ray Tune has ended before its trials; a reason is added.
    """
    settings = prepared.settings
    plan = StudyPlan(prepared.samplers(), prepared.budget, records)
    array = prepared.federation.x.numpy()
    stored, sha256 = ray.put(array), digest(array)
    trainable = tune.with_resources(
        tune.with_parameters(
            TrialWorker,
            study=str(folder.path),
            metric=settings.metric,
            deployment=settings.deployment,
            rounds=settings.rounds,
            samples=[stored],
            rest=prepared.federation.without_samples(),
            parcel=prepared.parcel,
            resume=folder.resume_command,
        ),
        bundles(prepared.resources, Reservations),
    )
    for wanted, schedule in _passes(folder.path, prepared.spaces, settings, records):
        if plan.is_over(wanted):
            continue
        queue = JobQueue(
            folder.path,
            plan,
            wanted,
            progress.end,
            rounds=settings.rounds,
            is_over=ray_session.are_lost,
            keeps_all=prepared.config.output.keep_trials == "all",
        )
        waits = Waits(prepared.resources, progress.note)
        callbacks = TuneCallbacks(queue, progress, waits)
        try:
            _fit(trainable, queue, schedule(queue), callbacks, folder, prepared)
        except StudyStopped as stopped:
            if not callbacks.begins_again:
                raise LostError(str(stopped)) from None
        except RuntimeError as error:
            # Ray Tune does not expect this error of a worker that it waits for.
            if OUT_OF_MEMORY not in str(error) or ray_session.are_lost():
                raise
            losses.append(why_lost(ray.exceptions.OutOfMemoryError(str(error))))
            if len(losses) > prepared.resources.retries:
                raise RunError(
                    f"a trial failed: {losses[-1]} This happened {len(losses)} times. Resume"
                    f" with: {_with_fewer(folder, prepared)}"
                ) from error
            progress.note(
                f"a trial failed: {losses[-1]} All trials that have begun continue from their"
                " last checkpoints."
            )
            callbacks.begins_again = True
        if callbacks.begins_again:
            Reservations.release()
            return False
        queue.remove_leftovers()  # a worker may have saved a trial after it was stopped
        remove_copies(folder.path)
        if not plan.is_over(wanted):
            raise LostError("Ray Tune stopped before the end.")
    check_unchanged(ray.get(stored), sha256)
    return True


Pass = tuple[Callable[[TrainingJob], bool], Callable[[JobQueue], Any]]


def _passes(
    study: Path, spaces: dict[str, Space], settings: SearchSettings, records: Sequence[Record]
) -> Iterator[Pass]:
    """Yield the passes of a study: a filter for the jobs that run together, and their scheduler.

    Each pass starts new processes, so that jobs run in one pass if possible. With population based
    training, the trials of each method form a pass of their own, because they exchange their
    states. The default trial is not part of it, because its parameters must not change.
    """
    if settings.scheduler == "pbt":
        for method, space in spaces.items():
            yield (
                partial(_is_of_population, method),
                partial(_population, space=space, settings=settings),
            )
    if settings.scheduler == "asha":
        seen = list(_seen(study, records, settings))
        yield _all, partial(_halving, settings=settings, seen=seen)
    else:
        yield _all, lambda queue: None


def _all(job: TrainingJob) -> bool:
    return True


def _is_of_population(method: str, job: TrainingJob) -> bool:
    return job.method == method and job.index > 0


def _halving(
    queue: JobQueue, *, settings: SearchSettings, seen: list[EarlierScore]
) -> HalvingByMethod:
    return HalvingByMethod(queue.jobs, rounds=settings.rounds, grace=settings.grace, seen=seen)


def _population(queue: JobQueue, *, space: Space, settings: SearchSettings) -> Any:
    every = settings.every * max(1, settings.rounds // (5 * settings.every))
    return population(every, partial(perturbed, space), settings.seed)


def _seen(
    study: Path, records: Sequence[Record], settings: SearchSettings
) -> Iterator[EarlierScore]:
    """Yield the scores of a resumed study, in their order, for successive halving."""
    for record in records:
        job = job_from_record(record)
        file = study / job.name / "metrics.csv"
        if not file.is_file():
            continue
        rows = metrics_file.read(file)
        for number in dict.fromkeys(row.round for row in rows if row.split == "validation"):
            score = score_at(rows, number, settings.metric, settings.deployment, settings.rounds)
            if score is not None:
                yield EarlierScore(job, number, score)


def _fit(
    trainable: Any,
    queue: JobQueue,
    scheduler: Any,
    callbacks: TuneCallbacks,
    folder: StudyFolder,
    prepared: PreparedStudy,
) -> None:
    """Let Ray Tune train the queue's jobs."""
    resources = prepared.resources
    at_once = None if prepared.settings.scheduler == "pbt" else resources.concurrent
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=queue,
            scheduler=scheduler,
            num_samples=-1,
            max_concurrent_trials=at_once,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path / "ray"),
            failure_config=tune.FailureConfig(max_failures=resources.retries),
            # Population based training copies states from here, also the same one several times.
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4),
            callbacks=[callbacks],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except tune.TuneError as error:
        last = str(error).strip().splitlines()[-1]
        raise RunError(f"Ray Tune failed ({last}). Resume with: {folder.resume_command}") from error
