"""Jobs in actors of Ray."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from numpy.typing import NDArray

from flbench.core.parts import portable
from flbench.jobs.job import Job
from flbench.jobs.launchers.attempts import Attempts, Lost
from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from flbench.workers.ray_cluster import cluster
from flbench.workers.ray_pool import ActorPool, there
from flbench.workers.ray_resources import Resources
from flbench.workers.samples import SharedSamples
from flbench.workers.shipping import pack
from flbench.workers.supervisor import Supervisor


@contextmanager
def ray_actors(
    jobs: Sequence[Job],
    samples: LoadedSamples,
    resources: Resources,
    supervisor: Supervisor,
    tell: Callable[[str], None],
) -> Iterator[Pooled]:
    """Context manager with a launcher on a Ray cluster, which is started for it.

    Args:
        jobs: The jobs that are left.
        samples: Their data.
        resources: Number of jobs at the same time, and the resources of each.
        supervisor: Stops the jobs after a stop signal or the loss of a server of Ray.
        tell: Function that gets notes for the user.

    Raises:
        KeyboardInterrupt: A stop signal has arrived.
        RunError: A server of Ray was lost, or a job changed the shared samples.
    """
    methods = sorted({job.config.algorithm.name for job in jobs})
    parcel = pack(samples.objects, methods)
    with cluster(resources, supervisor):
        needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        kind = ray.remote(JobWorker).options(num_cpus=resources.cpus, num_gpus=resources.gpus)
        given = [ray.put(portable(parcel, ray.cloudpickle.dumps))]
        found = there(needs)
        room = [int(found[key] / amount + 1e-9) for key, amount in needs.items() if amount]
        at_once, patience = max(1, min(resources.concurrent, *room)), resources.engine.wait_seconds
        name = f"a {resources.kind.name}"
        launcher = Pooled(
            at_once,
            ActorPool(lambda: kind.remote(*given), at_once, needs, name, patience, tell),
            Store(jobs, samples, _stored, ray.put),
            supervisor,
            Attempts(resources.retries, tell),
            Lost(patience, tell),
        )
        try:
            with supervisor.waiting():
                yield launcher
        finally:
            # After an interrupt, the exception holds the launcher until Ray is shut down, and Ray's
            # library may crash when a reference ends after that.
            launcher.close()
            given.clear()


def _stored(samples: NDArray[Any]) -> StoredSamples:
    """Put samples into Ray's object store. At the end it is checked that they have not changed."""
    shared = SharedSamples.put(samples)
    return StoredSamples(shared.reference, shared.check)
