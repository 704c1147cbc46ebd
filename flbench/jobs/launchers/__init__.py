"""Where jobs are trained: a file for each kind of place, such as the processes of Ray.

A launcher follows `base.Launcher`. A further one is a file beside the others and a case in
`launcher`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from flbench.jobs.job import Job
from flbench.jobs.launchers.base import Launcher
from flbench.jobs.launchers.local_processes import local_processes
from flbench.jobs.launchers.this_process import ThisProcess
from flbench.jobs.samples import LoadedSamples
from flbench.workers.ray_resources import Resources


def launcher(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    tell: Callable[[str], None],
) -> AbstractContextManager[Launcher]:
    """Return a context manager with the launcher for jobs.

    Args:
        jobs: The jobs that are left.
        samples: Their data.
        resources: Number of jobs at the same time, and what each of them needs.
        tell: Function that gets notes for the user.
    """
    if resources.address is None and min(resources.concurrent, len(jobs)) < 2:
        return nullcontext(ThisProcess(samples))
    if resources.gpus or resources.address:
        from flbench.jobs.launchers.ray_actors import ray_actors  # importing Ray takes a second

        return ray_actors(jobs, samples, resources, tell)
    return local_processes(jobs, samples, resources, tell)
