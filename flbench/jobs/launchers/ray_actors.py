"""Jobs in actors of Ray."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from flbench.jobs.launchers.job_worker import JobWorker
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import StoredSamples
from flbench.jobs.resources import Resources, cluster
from flbench.workers import actor_pool
from flbench.workers.process_pool import SharedArray
from flbench.workers.ray_driver import RayPool
from flbench.workers.shipping import Parcel


@contextmanager
def ray_actors(
    parcel: Parcel,
    resources: Resources,
    pooled: Callable[..., Pooled],
    tell: Callable[[str], None],
) -> Iterator[Pooled]:
    """Context manager with a launcher on a Ray cluster, which is started for it.

    `pooled` makes it of the number of actors, of the pool, and of what stores samples and objects.

    Raises:
        RunError: A server of Ray was lost.
    """
    with cluster(resources) as driver:
        needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
        found = driver.call(actor_pool.there, [*needs])
        room = [int(found[key] / amount + 1e-9) for key, amount in needs.items() if amount]
        at_once, patience = max(1, min(resources.concurrent, *room)), resources.engine.wait_seconds
        name = f"a {resources.kind}"
        pool = RayPool(driver, tell, JobWorker, [parcel], at_once, needs, name, patience)

        def stored(array: NDArray[Any]) -> StoredSamples:
            """Put samples into Ray's object store."""
            shared = pool.put(SharedArray(array))
            return StoredSamples(shared, free=lambda: pool.give_up(shared))

        yield pooled(at_once, pool, stored, pool.put)
