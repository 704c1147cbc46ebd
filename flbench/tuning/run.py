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

from flbench.core.errors import RunError
from flbench.data.federation import Federation
from flbench.results import metrics_file
from flbench.tuning.callbacks import Watch
from flbench.tuning.cluster import Resources
from flbench.tuning.perturbing import perturbed
from flbench.tuning.plan import Plan
from flbench.tuning.progress_table import Board
from flbench.tuning.queue import Queue
from flbench.tuning.schedulers import HalvingByMethod, Seen, population
from flbench.tuning.space import Space
from flbench.tuning.study import Job, Record, job_of
from flbench.tuning.worker import Worker

ORPHANS: Final = 30.0  # seconds
TERMINATED: Final = 130  # as after Ctrl-C: what is there can be gone on with


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


def carry_out(
    study: Path,
    plan: Plan,
    federation: Federation,
    *,
    spaces: dict[str, Space],
    rules: Rules,
    resources: Resources,
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
        resources: that it may use.
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
            rest=federation.without_samples(),
        ),
        resources.bundles(),
    )
    _wait_for_orphans(records)
    for wanted, schedule in _passes(study, spaces, rules, records):
        if plan.is_over(wanted):
            continue
        queue = Queue(study, plan, wanted, board.end, rounds=rules.rounds)
        at_once = None if rules.scheduler == "pbt" else resources.concurrent
        with _ends_at_once(study):
            _fit(trainable, queue, schedule(queue), study, resources, Watch(queue, board), at_once)
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


def _fit(
    trainable: Any,
    queue: Queue,
    scheduler: Any,
    study: Path,
    resources: Resources,
    watch: Watch,
    at_once: int | None,
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
