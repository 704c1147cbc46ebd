"""Where jobs are trained: a file for each kind of place, such as the processes of Ray.

A launcher follows `base.Launcher`. A further one is a file beside the others and a case in
`launcher`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flbench.jobs.job import Job
from flbench.jobs.launchers.attempts import Lost
from flbench.jobs.launchers.base import Launcher
from flbench.jobs.launchers.local_processes import local_processes
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import Store
from flbench.jobs.launchers.this_process import ThisProcess
from flbench.jobs.resources import Resources
from flbench.jobs.samples import LoadedSamples
from flbench.workers.pool import Pool
from flbench.workers.shipping import pack


def launcher(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    tell: Callable[[str], None],
) -> AbstractContextManager[Launcher]:
    """Return a context manager with the launcher for jobs."""
    if resources.address is None and min(resources.concurrent, len(jobs)) < 2:
        return nullcontext(ThisProcess(samples))
    parcel = pack(samples.objects, sorted({job.config.algorithm.name for job in jobs}))
    lost = Lost(resources.retries, resources.engine.wait_seconds, tell)

    def pooled(at_once: int, pool: Pool, *storing: Callable[[Any], Any]) -> Pooled:
        store = Store(jobs, samples, *storing)
        return Pooled(at_once, pool, store, lost)

    if resources.gpus or resources.address:
        from flbench.jobs.launchers.ray_actors import ray_actors  # importing Ray takes a second

        return ray_actors(parcel, resources, pooled, tell)
    return local_processes(parcel, resources, pooled)
