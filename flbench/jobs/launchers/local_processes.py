"""Jobs in processes of this machine."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import StoredSamples
from flbench.jobs.resources import Resources
from flbench.workers import fork_server
from flbench.workers.process_pool import ProcessPool, SharedArray
from flbench.workers.shipping import Parcel


@contextmanager
def local_processes(
    parcel: Parcel, resources: Resources, pooled: Callable[..., Pooled]
) -> Iterator[Pooled]:
    """Context manager with a launcher whose processes end with it.

    `pooled` makes it of their number, of the pool, and of what stores samples.

    Raises:
        RunError: The system starts no further process.
    """
    fork_server.prepare()
    pool = ProcessPool(quiet_worker, parcel, most=resources.concurrent)
    launcher = pooled(resources.concurrent, pool, _stored)
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
