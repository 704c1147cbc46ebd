"""Runs the jobs of a study on Ray Tune."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune

from flbench.core.errors import RunError
from flbench.core.imported import portable
from flbench.data.federation import Federation
from flbench.results import metrics_file
from flbench.tuning.callbacks import TuneCallbacks
from flbench.tuning.deployments import score_at
from flbench.tuning.perturbing import perturbed
from flbench.tuning.plan import StudyPlan
from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.queue import JobQueue
from flbench.tuning.ray_tune import bundles
from flbench.tuning.schedulers import EarlierScore, HalvingByMethod, population
from flbench.tuning.search_space import Space
from flbench.tuning.study import Record, TrainingJob, job_from_record
from flbench.tuning.worker import TrialWorker
from flbench.workers.orphans import wait_for_orphans
from flbench.workers.resources import Resources
from flbench.workers.samples import SharedSamples
from flbench.workers.shipping import Parcel
from flbench.workers.supervisor import Supervisor


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
        metric: Metric on validation parts that scores a trial.
        deployment: Name of the deployment that scores a trial.
        scheduler: Name of the scheduler: asha, pbt or none.
        rounds: Number of rounds of a complete trial.
        every: Number of rounds between two evaluations.
        seed: Seed of the explore step of population based training.
    """

    metric: str
    deployment: str
    scheduler: str
    rounds: int
    every: int
    seed: int

    @property
    def grace(self) -> int:
        """Rounds before successive halving may stop a trial: a ninth of all rounds, rounded up to
        an evaluation.
        """
        return self.every * -(-max(1, self.rounds // 9) // self.every)


def carry_out(
    study: Path,
    plan: StudyPlan,
    federation: Federation,
    *,
    spaces: dict[str, Space],
    settings: SearchSettings,
    resources: Resources,
    parcel: Parcel,
    resume: str,
    progress: ProgressTable,
    records: Sequence[Record],
    supervisor: Supervisor,
) -> None:
    """Train the jobs of a plan that have not ended.

    Args:
        study: Study folder.
        plan: Plan of the study.
        federation: Partitioned data set. Its samples are put into Ray's object store once.
        spaces: Search spaces by method.
        settings: Settings of the search.
        resources: Resources that the study may use.
        parcel: Objects of the user, which are put into Ray's object store once.
        resume: What the user calls to resume the study, for messages.
        progress: Progress table to update.
        records: Contents of trial.json of the trials that began before the study was resumed.
        supervisor: Stops the study after a stop signal or the loss of a server of Ray.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Trainings that have ended are kept; the others
            resume from their checkpoints when the study is resumed.
        RunError: Ray Tune stopped before the end, a server of Ray was lost, or a trial changed the
            shared samples.
    """
    shared = SharedSamples.put(federation.x.numpy())
    trainable = tune.with_resources(
        tune.with_parameters(
            TrialWorker,
            study=str(study),
            metric=settings.metric,
            deployment=settings.deployment,
            rounds=settings.rounds,
            samples=[shared.reference],
            rest=federation.without_samples(),
            parcel=portable(parcel, ray.cloudpickle.dumps),
            resume=resume,
        ),
        bundles(resources),
    )
    pids = (record["pid"] for record in records if record["ended"] is None)
    wait_for_orphans(pids, _is_worker)
    for wanted, schedule in _passes(study, spaces, settings, records):
        if plan.is_over(wanted):
            continue
        queue = JobQueue(
            study,
            plan,
            wanted,
            progress.end,
            rounds=settings.rounds,
            is_over=supervisor.is_over,
        )
        at_once = None if settings.scheduler == "pbt" else resources.concurrent
        with supervisor.waiting():
            _fit(
                trainable,
                queue,
                schedule(queue),
                study,
                resources,
                TuneCallbacks(queue, progress, supervisor),
                at_once,
                resume,
            )
        if not plan.is_over(wanted):
            raise RunError(f"Ray Tune stopped before the end. {supervisor.note}")
    shared.check()


def _is_worker(pid: int | None) -> bool:
    """Whether a process id belongs to a worker of Ray.

    The id of a worker that has ended may belong to another process by now.
    """
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


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
    return job.method == method and job.kind == "search" and job.index > 0


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
    study: Path,
    resources: Resources,
    callbacks: TuneCallbacks,
    at_once: int | None,
    resume: str,
) -> None:
    """Let Ray Tune train the queue's jobs."""
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
            storage_path=str(study / "ray"),
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
        raise RunError(f"Ray Tune failed ({last}). Resume with: {resume}") from error
