"""Jobs in processes of this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from flbench.jobs.job import Job
from flbench.jobs.launchers.attempts import Attempts, Lost
from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from flbench.workers import fork_server
from flbench.workers.process_pool import ProcessPool, SharedArray
from flbench.workers.ray_resources import Resources
from flbench.workers.shipping import Parcel, pack


@contextmanager
def local_processes(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    tell: Callable[[str], None],
) -> Iterator[Pooled]:
    """Context manager with a launcher whose processes end with it.

    Args:
        jobs: The jobs that are left.
        samples: Their data.
        resources: Number of jobs at the same time.
        tell: Function that gets notes for the user.

    Raises:
        RunError: The system starts no further process.
    """
    methods = sorted({job.config.algorithm.name for job in jobs})
    parcel = pack(samples.objects, methods)
    fork_server.prepare()
    launcher = Pooled(
        resources.concurrent,
        ProcessPool(quiet_worker, parcel, most=resources.concurrent),
        Store(jobs, samples, _stored),
        Attempts(resources.retries, tell),
        Lost(resources.engine.wait_seconds, tell),
    )
    try:
        yield launcher
    finally:
        launcher.close()


def quiet_worker(parcel: Parcel) -> JobWorker:
    """Return what trains jobs in this process, which prints nothing from now on.

    Several processes would print at the same time, and into the display of the progress.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    return JobWorker(parcel)


def _stored(samples: NDArray[Any]) -> StoredSamples:
    """Copy samples to memory that all processes share."""
    shared = SharedArray(samples)
    return StoredSamples(shared, free=shared.close)
