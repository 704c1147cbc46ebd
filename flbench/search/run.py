"""Running a study's jobs on Ray Tune."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray import tune

from flbench.config import EngineConfig
from flbench.data.federation import Federation
from flbench.engine.ray import connect
from flbench.errors import ConfigError, RunError
from flbench.search.board import Board
from flbench.search.perturbing import perturbed
from flbench.search.plan import Plan
from flbench.search.queue import Queue
from flbench.search.schedulers import HalvingByMethod, Seen, population
from flbench.search.space import Space
from flbench.search.study import Job, Record, job_of
from flbench.search.worker import Worker
from flbench.tracking import metrics_file

ORPHANS: Final = 30.0  # seconds
TERMINATED: Final = 130  # as after Ctrl-C: what is there can be gone on with

# Of Ray Tune, before it is used: our folders say all that a resume needs.
QUIET: Final = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours: Tune's would look like an end
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # a whole population waits its turn
}


@dataclass(frozen=True)
class Means:
    """What a study may use.

    Attributes:
        concurrent: trials at once.
        engine: of the trials.
        gpus: of each trial.
        retries: of a trial whose worker fails.
        address: of a Ray cluster; None starts one.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None

    @property
    def cpus(self) -> int:
        """Cores of one trial."""
        workers = self.engine.workers
        if self.engine.name == "ray":
            return workers if isinstance(workers, int) else 1
        return self.engine.threads or 1

    def bundles(self) -> Any:
        """Return what Ray reserves for one trial.

        A trial that starts workers of its own needs a bundle for each, and an empty one for itself:
        it would wait for ever for them otherwise.
        """
        if self.engine.name == "ray":
            worker = {"CPU": 1, "GPU": 1} if self.gpus else {"CPU": 1}
            return tune.PlacementGroupFactory([{"CPU": 0}, *[worker] * self.cpus])
        return {"CPU": self.cpus, "GPU": self.gpus}


@dataclass(frozen=True)
class Rules:
    """How a study searches.

    Attributes:
        metric: of validation, that scores a trial.
        scheduler: asha, pbt or none.
        rounds: of a whole trial.
        every: rounds between two evaluations.
        seed: of what population based training explores.
    """

    metric: str
    scheduler: str
    rounds: int
    every: int
    seed: int

    @property
    def grace(self) -> int:
        """Rounds that successive halving gives every trial: a ninth, at an evaluation."""
        return self.every * -(-max(1, self.rounds // 9) // self.every)


@contextmanager
def cluster(means: Means) -> Iterator[None]:
    """Join or start a Ray cluster for as long as the block lasts."""
    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET.items()})
    # The cores that a cluster of our own says it has keep the number of trials at once.
    owns = connect(means.address, key="--address", cpus=means.concurrent * means.cpus)
    try:
        _check(means)
        yield
    finally:
        if owns:
            ray.shutdown()


def _check(means: Means) -> None:
    """Raise a ConfigError if no node has what a trial needs: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if means.engine.name == "ray":  # its workers may be on any node
        nodes = [ray.cluster_resources()]
    needs = {"CPU": float(means.cpus), "GPU": means.gpus}
    if not any(all(node.get(key, 0.0) >= needs[key] for key in needs) for node in nodes):
        there = "; ".join(
            f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
        )
        raise ConfigError(
            f"a trial needs {means.cpus} CPUs and {means.gpus:g} GPUs, and Ray has {there}. Lower"
            " engine.threads, engine.workers or --gpus-per-trial."
        )


def carry_out(
    study: Path,
    plan: Plan,
    federation: Federation,
    *,
    spaces: dict[str, Space],
    rules: Rules,
    means: Means,
    board: Board,
    records: Sequence[Record],
) -> None:
    """Train what is left of a plan.

    Args:
        study: the study folder.
        plan: says what is left.
        federation: the samples; they go to the object store once.
        spaces: by method.
        rules: of the search.
        means: that it may use.
        board: is told how it goes.
        records: of the trials that began before.
    Raises: KeyboardInterrupt after Ctrl-C; what has ended stays, and the rest goes on from its
        checkpoints when it is carried out again. RunError if Ray gives up.
    """
    shared = ray.put(federation.x.numpy())
    before = _digest(shared)
    trainable = tune.with_resources(
        tune.with_parameters(
            Worker,
            study=str(study),
            metric=rules.metric,
            rounds=rules.rounds,
            samples=[shared],
            rest=federation.bare(),
        ),
        means.bundles(),
    )
    _wait_for_orphans(records)
    for wanted, schedule in _passes(study, spaces, rules, records):
        if plan.is_over(wanted):
            continue
        queue = Queue(study, plan, wanted, board.end, rounds=rules.rounds)
        at_once = None if rules.scheduler == "pbt" else means.concurrent
        with _ends_at_once(study):
            _fit(trainable, queue, schedule(queue), study, means, _Watch(queue, board), at_once)
        if not plan.is_over(wanted):
            raise RunError(
                f"Ray Tune stopped before the end. Go on with: flbench tune --resume {study}"
            )
    if _digest(shared) != before:
        # PyTorch writes through the read-only flag of shared memory.
        raise RunError(
            "the samples that all trials share have changed while they ran: a loss or a method"
            " writes to its inputs. None of these figures can be trusted."
        )


def _digest(shared: Any) -> str:
    return hashlib.sha256(ray.get(shared).data).hexdigest()


def _wait_for_orphans(records: Sequence[Record]) -> None:
    """Wait until no worker of a driver that was killed is left: it would write beside ours.

    Ray ends them within seconds. A process with the number of one that is long gone is no worker.
    """
    end = time.monotonic() + ORPHANS
    for record in records:
        while record["ended"] is None and _is_worker(record["pid"]) and time.monotonic() < end:
            time.sleep(0.1)


def _is_worker(pid: int | None) -> bool:
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


Pass = tuple[Callable[[Job], bool], Callable[[Queue], Any]]


def _passes(
    study: Path, spaces: dict[str, Space], rules: Rules, records: Sequence[Record]
) -> Iterator[Pass]:
    """Yield which jobs go through Ray Tune together, and their scheduler.

    All in one pass: each further one starts new processes. A population is a pass of its own, since
    its trials exchange their states, less the default parameters, which nothing may change.
    """
    if rules.scheduler == "pbt":
        for method, space in spaces.items():
            yield (
                partial(_is_of_population, method),
                partial(_population, space=space, rules=rules),
            )
    if rules.scheduler == "asha":
        seen = list(_seen(study, records, rules.metric))
        yield _all, partial(_halving, rules=rules, seen=seen)
    else:
        yield _all, lambda queue: None


def _all(job: Job) -> bool:
    return True


def _is_of_population(method: str, job: Job) -> bool:
    return job.method == method and job.kind == "search" and job.index > 0


def _halving(queue: Queue, *, rules: Rules, seen: list[Seen]) -> HalvingByMethod:
    return HalvingByMethod(queue.jobs, rounds=rules.rounds, grace=rules.grace, seen=seen)


def _population(queue: Queue, *, space: Space, rules: Rules) -> Any:
    every = rules.every * max(1, rules.rounds // (5 * rules.every))
    return population(every, partial(perturbed, space), rules.seed)


def _seen(study: Path, records: Sequence[Record], metric: str) -> Iterator[Seen]:
    """Yield the scores of a study that is resumed, which successive halving has to know again."""
    for record in records:
        job = job_of(record)
        file = study / job.name / "metrics.csv"
        if not file.is_file():
            continue
        for row in metrics_file.read(file):
            if row[1:4] == ("validation", "personal", metric):
                yield Seen(job, row.round, row.value)


class _Watch(tune.Callback):  # type: ignore[misc]
    """Tells the board what Ray Tune knows."""

    def __init__(self, queue: Queue, board: Board) -> None:
        self._queue, self._board = queue, board

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing for Ray Tune's own snapshots."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._board.progress(self._queue.jobs[trial.trial_id], result["round"])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._queue.retried(trial.trial_id)
        job = self._queue.jobs[trial.trial_id]
        self._board.say(f"{job.name} failed ({_reason(trial)}), and goes on from its checkpoint.")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._queue.explain(trial.trial_id, _reason(trial))


def _reason(trial: Any) -> str:
    """Return one line on why a trial failed last."""
    try:
        # Its own accessor reads the study's copy of this file, which comes later.
        with Path(trial.pickled_error_file).open("rb") as file:
            error = ray.cloudpickle.load(file)
    except OSError:
        return "Ray Tune does not say why."
    if isinstance(error, ray.exceptions.RayActorError):
        return "its worker died: it was killed, or memory is short."
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"


def _fit(
    trainable: Any,
    queue: Queue,
    scheduler: Any,
    study: Path,
    means: Means,
    watch: _Watch,
    at_once: int | None,
) -> None:
    """Let Ray Tune train the queue's jobs; returns early after Ctrl-C."""
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
            failure_config=tune.FailureConfig(max_failures=means.retries),
            # Population based training takes states from here; several trials may want the same.
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4),
            callbacks=[watch],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except tune.TuneError as error:
        last = str(error).strip().splitlines()[-1]
        raise RunError(
            f"Ray Tune gave up ({last}). Go on with: flbench tune --resume {study}"
        ) from error


@contextmanager
def _ends_at_once(study: Path) -> Iterator[None]:
    """Let SIGTERM end the process without a word to Ray.

    It is often sent to all processes of a group or service. Ray's servers are gone then, and asking
    them for anything takes a minute. What has ended is in the study folder.
    """

    def end(*_: object) -> None:
        text = f"note: terminated. Go on with: flbench tune --resume {study}\n"
        os.write(2, text.encode())
        os._exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
