"""Clients distributed over Ray actors, on the cores or GPUs of this machine or of a cluster.

Each actor has an engine of its own. In a round it gets its clients in one call, and no state is
kept between calls. So an actor that dies is restarted, and its clients are trained again.
"""

from typing import Any, Final

import ray
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, PrintableError, RunError
from flbench.core.imported import portable
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine.base import Dispatcher, KeptRows, RoundSettings, open_device
from flbench.engine.worker import Worker, arguments, assign, in_order, unpacked, warn_again
from flbench.workers.session import connect, disconnect

RESTARTS: Final = 3
"""Restarts of an actor before the run fails."""


class RayEngine:
    """Trains clients on Ray actors, each with a sequential engine (a vectorized one on a GPU).

    On CPUs the results are those of the sequential engine, bit for bit, for any number of actors
    and equal `engine.threads`, because the training of a client does not depend on other clients.

    Args:
        net: The seeded net. Its values are the leaves' initial values.
        federation: The samples of all clients; they are put into the object store once.
        config: Number of workers, address of the cluster, threads, device, precision, and whether
            steps are traced.

    Raises:
        ConfigError: No cluster answers at `engine.address`, it has too few CPUs or GPUs, or the
            device cannot compute in that precision.
        RunError: The actors do not start within two minutes.
    """

    def __init__(self, net: nn.Module, federation: Federation, config: EngineConfig) -> None:
        on_gpu = open_device(config).type == "cuda"
        self._sizes = federation.sizes
        self._owns_ray = connect(config.address)
        self._actors: list[Any] = []
        try:
            self._start(net, federation, config, on_gpu=on_gpu)
        except (ConfigError, RunError):
            self.close()
            raise

    def _start(
        self, net: nn.Module, federation: Federation, config: EngineConfig, *, on_gpu: bool
    ) -> None:
        """Put the samples into the object store and start the actors."""
        count = _workers(config, on_gpu=on_gpu)
        # The object store shares the samples between all actors of a machine. The references are
        # kept, because a restarted actor reads the objects again.
        self._samples = ray.put(federation.x.numpy())
        rest = net, federation.without_samples(), config
        self._rest = ray.put(portable(rest, ray.cloudpickle.dumps))
        kind = ray.remote(Worker).options(
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
        )
        self._actors = [kind.remote(self._samples, self._rest) for _ in range(count)]
        _wait(self._actors, config)

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
        """Train the clients on the actors, one call each; see `Engine.run`."""
        calls = []
        assigned = assign(self._sizes[ids].tolist(), len(self._actors))
        for actor, positions in zip(self._actors, assigned, strict=True):
            if positions:
                block = ids[positions]
                given = arguments(block, rows(block), dispatch(block))
                calls.append(actor.run.remote(program, *given, settings, observe))
        try:
            returned = ray.get(calls)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PrintableError):
                raise error.cause from None  # without Ray's traceback in the text
            raise
        except ray.exceptions.ActorDiedError as error:
            raise RunError(
                f"a worker of engine.name=ray died {RESTARTS + 1} times, possibly for lack of"
                " memory. Lower engine.workers."
            ) from error
        warn_again(warned for arrays in returned for warned in arrays["warned"])
        return in_order([unpacked(arrays) for arrays in returned], ids, settings.storage)

    def block(self, batch_size: int) -> int | None:
        """Return None: each actor decides how many clients it stacks."""
        return None

    def report(self) -> dict[str, float]:
        """Return `workers`, the number of actors."""
        return {"workers": len(self._actors)}

    def close(self) -> None:
        """End the actors, and the cluster if this engine started it."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._owns_ray:
            disconnect()


def _workers(config: EngineConfig, *, on_gpu: bool) -> int:
    """Return the number of actors: `engine.workers`, or one per CPU or GPU of the cluster.

    Raises:
        ConfigError: The cluster has fewer CPUs or GPUs.
    """
    resource = "GPU" if on_gpu else "CPU"
    available = int(ray.cluster_resources().get(resource, 0))
    count = available if config.workers == "auto" else config.workers
    if not 1 <= count <= available:
        raise ConfigError(
            f"`engine.workers`={config.workers} needs as many {resource}s, but the Ray cluster has"
            f" {available}."
        )
    return count


def _wait(actors: list[Any], config: EngineConfig) -> None:
    """Wait until the actors are ready.

    Raises:
        RunError: One of them is not ready within two minutes.
    """
    try:
        ray.get([actor.ready.remote() for actor in actors], timeout=120)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        lower = f"Lower engine.workers (now {config.workers})"
        cure = lower if len(actors) > 1 else "Use engine.name=sequential"
        raise RunError(
            f"workers of engine.name=ray did not start within 120 s ({error}). {cure}, or begin"
            " again when the machine has less to do."
        ) from error
