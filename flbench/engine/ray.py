"""Clients distributed over Ray actors, on the cores or GPUs of this machine or of a cluster.

An actor is a worker as a process of this machine is one; see `flbench.engine.worker`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine.base import LocalWork
from flbench.engine.worker import Worker, train_by_workers
from flbench.workers import actor_pool
from flbench.workers.nesting import is_elsewhere
from flbench.workers.process_pool import SharedArray
from flbench.workers.ray_driver import RayDriver, RayPool


class RayEngine:
    """Trains clients on Ray actors, each with a sequential engine (a vectorized one on a GPU).

    On CPUs the results are those of the sequential engine, bit for bit, for any number of actors
    and equal `engine.threads`, because the training of a client does not depend on other clients.

    Args:
        net: The seeded net. Its values are the leaves' initial values.
        federation: The samples of all clients; they are put into the object store once.
        config: Number of workers, address of the cluster, threads, device and precision.
        tell: Function that gets notes for the user; None if nobody hears them.

    Raises:
        ConfigError: No cluster answers at `engine.address`, or it has too few CPUs or GPUs.
    """

    def __init__(
        self,
        net: nn.Module,
        federation: Federation,
        config: EngineConfig,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._given, self._tell = (net, federation, config), tell or (lambda note: None)
        self._driver: RayDriver | None = None
        self._pool: RayPool | None = None
        self._used = 0
        self._is_on_gpu = config.device.startswith("cuda")  # of the workers
        self._opened()

    def _opened(self) -> RayPool:
        """Return the actors; start them if there are none, as after `close`."""
        if self._pool is not None:
            return self._pool
        net, federation, config = self._given
        self._driver = RayDriver(config.address)
        try:
            there = self._driver.call(actor_pool.there, ["CPU", "GPU"])
            count = _workers(config, there, self._tell, on_gpu=self._is_on_gpu)
            # All actors of a machine share the samples.
            rest = net, federation.without_samples(), config
            needs = {"CPU": 1.0, "GPU": float(self._is_on_gpu)}
            samples, name = SharedArray(federation.x.numpy()), "a worker of engine.name=ray"
            given = [samples, rest], count, needs, name, config.wait_seconds
            self._pool = RayPool(self._driver, self._tell, Worker, *given)
        except BaseException:
            self.close()
            raise
        return self._pool

    def run(self, work: LocalWork, ids: Tensor) -> Results:
        """Train the clients on the actors; see `Engine.run`."""
        pool, sizes = self._opened(), self._given[1].sizes
        results = train_by_workers(pool, work, torch.split(ids, 1), sizes, self._tell)
        self._used = pool.ready
        return results

    def stacked(
        self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int
    ) -> int | None:
        """Return 1; None on GPUs, where the number of actors decides which clients are stacked."""
        return None if self._is_on_gpu else 1

    def report(self) -> dict[str, float]:
        """Return `workers`, the number of actors in the last round."""
        return {"workers": self._used}

    def close(self) -> None:
        """End the actors, and the cluster if this engine started it; `run` starts them again."""
        if self._driver is not None:
            self._driver.close()
        self._driver = self._pool = None


def _workers(
    config: EngineConfig, there: dict[str, float], tell: Callable[[str], None], *, on_gpu: bool
) -> int:
    """Return the number of actors: `engine.workers`, or one per CPU or GPU that is there.

    A cluster with an address may have lost nodes since the run began.

    Raises:
        ConfigError: The cluster has fewer CPUs or GPUs.
    """
    resource = "GPU" if on_gpu else "CPU"
    available = int(there[resource])
    count = available if config.workers == "auto" else config.workers
    if count > available >= 1 and is_elsewhere(config.address):
        tell(
            f"engine.workers={count}, but the Ray cluster has {available} {resource}s: as many"
            " workers train. The digest does not depend on it."
        )
        return available
    if not 1 <= count <= available:
        raise ConfigError(
            f"`engine.workers`={config.workers} needs as many {resource}s, but the Ray cluster has"
            f" {available}."
        )
    return count
