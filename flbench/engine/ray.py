"""Clients distributed over Ray actors, on the cores or GPUs of this machine or of a cluster.

Each actor has an engine of its own. In a round it gets its clients in one call, and no state is
kept between calls. So the clients of an actor that is lost are trained again, by any other one.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import ray
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, PrintableError, RunError
from flbench.core.imported import portable
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine.base import (
    Dispatcher,
    KeptRows,
    LostWorkersError,
    RoundSettings,
    concatenate_results,
)
from flbench.engine.worker import Worker, arguments, assign, in_order, unpacked, warn_again
from flbench.workers.cluster import device_there
from flbench.workers.lost import could_not_begin, why_lost
from flbench.workers.nesting import is_ray_worker
from flbench.workers.pool import ActorPool, Ended
from flbench.workers.resources import is_elsewhere
from flbench.workers.session import connect, disconnect

RESTARTS: Final = 3
"""How often the same clients are given to another actor, before the run fails."""
START_SECONDS: Final = 120.0
"""Seconds that the actors may take until they are ready, or `engine.wait_seconds` if that is more:
on a machine with much to do, the imports of a process take minutes."""
OTHERS_SECONDS: Final = 25.0
"""Seconds that the others may take when one is ready. Then the training begins without them."""
PERIOD: Final = 1.0  # seconds between two looks at actors that train


class RayEngine:
    """Trains clients on Ray actors, each with a sequential engine (a vectorized one on a GPU).

    On CPUs the results are those of the sequential engine, bit for bit, for any number of actors
    and equal `engine.threads`, because the training of a client does not depend on other clients.

    Args:
        net: The seeded net. Its values are the leaves' initial values.
        federation: The samples of all clients; they are put into the object store once.
        config: Number of workers, address of the cluster, threads, device and precision.
        tell: Function that gets notes while the actors start; None keeps them until `tell_by`.

    Raises:
        ConfigError: No cluster answers at `engine.address`, or it has too few CPUs or GPUs.
        RunError: No actor starts in time, see `START_SECONDS`; or the device of a worker does not
            exist or cannot compute in that precision.
    """

    def __init__(
        self,
        net: nn.Module,
        federation: Federation,
        config: EngineConfig,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._given = net, federation, config
        self._sizes = federation.sizes
        self._notes: list[str] = []  # until somebody hears them
        self._tell = tell or self._notes.append
        self._pool: ActorPool | None = None
        self._owns_ray = False
        self._used = 0
        self._opened()

    def _opened(self) -> ActorPool:
        """Return the actors; start them if there are none, as after `close`."""
        if self._pool is None:
            net, federation, config = self._given
            self._owns_ray = connect(config.address)
            try:
                # The workers check that the device exists; this process need not have it.
                on_gpu = self._is_on_gpu = device_there(config.device, config.address) == "cuda"
                self._pool = self._started(net, federation, config, on_gpu=on_gpu)
            except (ConfigError, RunError):
                self.close()
                raise
        return self._pool

    def _started(
        self, net: nn.Module, federation: Federation, config: EngineConfig, *, on_gpu: bool
    ) -> ActorPool:
        """Put the samples into the object store and start the actors."""
        count = _workers(config, self._tell, on_gpu=on_gpu)
        # The object store shares the samples between all actors of a machine. The references are
        # kept, because an actor that takes the place of a lost one reads the objects again.
        self._samples = ray.put(federation.x.numpy())
        rest = net, federation.without_samples(), config
        self._rest = ray.put(portable(rest, ray.cloudpickle.dumps))
        needs = {"CPU": 1.0, "GPU": 1.0 if on_gpu else 0.0}
        kind = ray.remote(Worker).options(num_cpus=needs["CPU"], num_gpus=needs["GPU"])
        pool = ActorPool(
            lambda: kind.remote(self._samples, self._rest),
            count,
            needs,
            "a worker of engine.name=ray",
            config.wait_seconds,
            self._tell,
        )
        _wait(pool, count, config)
        return pool

    def tell_by(self, tell: Callable[[str], None]) -> None:
        """Tell the user of lost workers by a function; notes so far are told at once.

        Args:
            tell: Function that gets notes for the user.
        """
        for note in self._notes:
            tell(note)
        self._tell = tell
        if self._pool is not None:
            self._pool.tell = tell

    def run(
        self,
        program: LocalProgram,
        ids: Tensor,
        *,
        rows: KeptRows,
        dispatch: Dispatcher,
        settings: RoundSettings,
        observe: tuple[Step, ...] = (),
    ) -> Results:
        """Train the clients on the actors, one call each for a group; see `Engine.run`."""
        call = program, rows, dispatch, settings, observe
        parts = (self._run(group, *call) for group in settings.groups(ids))
        return concatenate_results(parts, ids, settings.storage)

    def _run(
        self,
        ids: Tensor,
        program: LocalProgram,
        rows: KeptRows,
        dispatch: Dispatcher,
        settings: RoundSettings,
        observe: tuple[Step, ...],
    ) -> Results:
        """Train clients that may be stacked together."""
        pool = self._opened()
        pool.fill()  # an actor that was lost may find a free core by now
        pool.ended(0)
        self._used = max(1, len(pool.ready))

        def submit(positions: tuple[int, ...]) -> None:
            block = ids[list(positions)]
            given = arguments(block, rows(block), dispatch(block))
            pool.submit(positions, "run", program, *given, settings, observe)

        left: set[tuple[int, ...]] = set()
        deaths: Counter[tuple[int, ...]] = Counter()
        for positions in assign(self._sizes[ids].tolist(), self._used):
            if positions:
                left.add(tuple(positions))
                submit(tuple(positions))
        returned = []
        try:
            while left:
                lost: list[Ended] = []
                for one in pool.ended(PERIOD):
                    if one.error is None:
                        left.remove(one.key)
                        returned.append(one.value)
                    else:
                        lost.append(one)
                for one in lost:
                    deaths[one.key] += 1
                    if deaths[one.key] > RESTARTS:
                        raise LostWorkersError(
                            f"the training of the same clients lost {deaths[one.key]} workers of"
                            f" engine.name=ray: {why_lost(one.error)} Lower engine.workers, or"
                            " train in one process with engine.name=sequential."
                        )
                    submit(one.key)
                if lost:
                    pool.tell(_about(lost, len(pool.ready)))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PrintableError):
                raise error.cause from None  # without Ray's traceback in the text
            raise
        except RunError as error:
            raise LostWorkersError(str(error)) from error
        warn_again(warned for arrays in returned for warned in arrays["warned"])
        return in_order([unpacked(arrays) for arrays in returned], ids, settings.storage)

    def actors(self) -> list[Any]:
        """Return the actors that are ready."""
        return self._opened().ready

    def block(self, batch_size: int) -> int | None:
        """Return None: each actor decides how many clients it stacks."""
        return None

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
        if self._pool is not None:
            self._pool.close(kill=True)
        self._pool = None
        if self._owns_ray:
            disconnect()
            self._owns_ray = False


def _workers(config: EngineConfig, tell: Callable[[str], None], *, on_gpu: bool) -> int:
    """Return the number of actors: `engine.workers`, or one per CPU or GPU of the cluster.

    A cluster with an address, and one in which this process is a worker itself, may have lost
    nodes since the run began. Then there are as many actors as it has CPUs or GPUs.

    Raises:
        ConfigError: The cluster has fewer CPUs or GPUs.
    """
    resource = "GPU" if on_gpu else "CPU"
    available = int(ray.cluster_resources().get(resource, 0))
    count = available if config.workers == "auto" else config.workers
    if count > available >= 1 and (is_elsewhere(config.address) or is_ray_worker()):
        tell(
            f"engine.workers={count}, but the nodes of the Ray cluster have {available}"
            f" {resource}{'' if available == 1 else 's'}: as many workers train. The digest does"
            " not depend on it."
        )
        return available
    if not 1 <= count <= available:
        raise ConfigError(
            f"`engine.workers`={config.workers} needs as many {resource}s, but the Ray cluster has"
            f" {available}."
        )
    return count


def _wait(pool: ActorPool, count: int, config: EngineConfig) -> None:
    """Start the actors, and wait until they are ready. Some of them are enough.

    Args:
        pool: The actors.
        count: Number of actors.
        config: Section `engine`.

    Raises:
        RunError: None of them is ready in time, or one cannot begin.
    """
    pool.fill()
    begin, patience = time.monotonic(), max(START_SECONDS, config.wait_seconds)
    first: float | None = None  # time when an actor was ready
    while len(pool.ready) < count and pool.failed is None:
        now = time.monotonic()
        first = now if first is None and pool.ready else first
        if now - begin >= patience or (first is not None and now - first >= OTHERS_SECONDS):
            break
        pool.ended(PERIOD)
    if pool.ready and pool.failed is None:
        if len(pool.ready) < count:
            pool.tell(
                f"{len(pool.ready)} of {count} workers of engine.name=ray have started. The others"
                " train too as soon as they are ready; the results are the same."
            )
        return
    pool.close(kill=True)
    if pool.failed is not None and could_not_begin(pool.failed):
        raise RunError(f"a worker of engine.name=ray did not start: {why_lost(pool.failed)}")
    late = f" within {patience:g} s."
    why = late if pool.failed is None else f": {why_lost(pool.failed)}"
    lower = f"Lower engine.workers (now {config.workers})"
    cure = lower if count > 1 else "Use engine.name=sequential"
    raise RunError(
        f"workers of engine.name=ray did not start{why} {cure}, or begin again when the machine has"
        " less to do."
    )


def _about(lost: list[Ended], left: int) -> str:
    """Return a sentence about lost actors.

    Args:
        lost: Their calls.
        left: Number of actors that are left.
    """
    how_many = "a worker" if len(lost) == 1 else f"{len(lost)} workers"
    were = "was" if len(lost) == 1 else "were"
    why = " ".join(dict.fromkeys(why_lost(one.error) for one in lost))
    their = "Its" if len(lost) == 1 else "Their"
    who = f"the {left} left" if left else "the next one that can begin"
    return (
        f"{how_many} of engine.name=ray {were} lost: {why} {their} clients are trained by {who};"
        " the results are the same."
    )
