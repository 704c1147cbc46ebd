"""Clients distributed over Ray actors, on the cores or GPUs of this machine or of a cluster.

Each actor has an engine of its own. In a round it gets its clients in one call, and no state is
kept between calls. So an actor that dies is restarted, and its clients are trained again.
"""

import os
import warnings
from typing import Any, Final

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, PrintableError, RunError
from flbench.core.imported import portable
from flbench.core.printable import warn
from flbench.core.raised import as_errors
from flbench.core.types import Dispatch, Message, Results, Tree
from flbench.data.federation import Federation
from flbench.engine.base import (
    Dispatcher,
    Engine,
    KeptRows,
    RoundSettings,
    concatenate_results,
    find_device,
    open_device,
)
from flbench.engine.traced import TraceWarning
from flbench.models.lightning_net import LightningNet
from flbench.workers.session import connect, disconnect

RESTARTS: Final = 3
"""Restarts of an actor before the run fails."""
Arrays = dict[str, NDArray[Any]]


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
        kind = ray.remote(Actor).options(
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
        for actor, positions in zip(self._actors, self._assign(ids), strict=True):
            if len(positions):
                block = ids[positions]
                sent = dispatch(block)
                calls.append(
                    actor.run.remote(
                        program,
                        block.numpy(),
                        _arrays(rows(block)),
                        (_packed(sent.shared), _packed(sent.rows), dict(sent.numbers)),
                        settings,
                        observe,
                    )
                )
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
        for note in dict.fromkeys(note for arrays in returned for note in arrays["notes"]):
            warn(note, TraceWarning, stacklevel=2)
        return _in_order([_unpacked(arrays) for arrays in returned], ids)

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

    def _assign(self, ids: Tensor) -> list[Tensor]:
        """Return the positions in `ids` [K] of each actor's clients.

        The client with most samples that is left goes to the actor with fewest samples so far.
        """
        work = self._sizes[ids].tolist()
        loads = [0.0] * len(self._actors)
        assigned: list[list[int]] = [[] for _ in self._actors]
        for position in sorted(range(len(work)), key=lambda k: (-work[k], k)):
            least = min(range(len(loads)), key=lambda k: (loads[k], k))
            assigned[least].append(position)
            loads[least] += work[position] + 1
        return [torch.tensor(sorted(positions), dtype=torch.int64) for positions in assigned]


class Actor:
    """One worker process.

    Args:
        samples: The inputs of all samples, in shared memory and read-only.
        rest: Net, federation without its samples, and configuration of the engine.
    """

    def __init__(self, samples: NDArray[Any], rest: tuple[nn.Module, Federation, Any]) -> None:
        net, federation, config = rest
        torch.set_num_threads(config.threads)
        self._engine = _engine_of_actor(net, federation.with_samples(samples), config)

    def ready(self) -> int:
        """Return the id of the process, when the engine is ready."""
        return os.getpid()

    def run(
        self,
        program: LocalProgram,
        ids: NDArray[np.int64],
        rows: Arrays,
        dispatch: tuple[Any, Any, dict[str, float]],
        settings: RoundSettings,
        observe: tuple[Step, ...],
    ) -> dict[str, Any]:
        """Train these clients; return the fields of `Results` as NumPy arrays, and notes.

        Args:
            program: See `Engine.run`.
            ids: [K] client ids.
            rows: The leaves that these clients keep, [K, ...] each.
            dispatch: The fields of a `Dispatch` for these clients, messages as pairs of arrays.
            settings: See `Engine.run`.
            observe: See `Engine.run`.
        """
        place = {int(client): k for k, client in enumerate(ids)}
        kept = _tensors(rows)
        shared, mine = (_message(packed) for packed in dispatch[:2])

        def some(tree: Tree, wanted: Tensor) -> Tree:
            index = torch.tensor([place[client] for client in wanted.tolist()])
            return {name: value[index] for name, value in tree.items()}

        with warnings.catch_warnings(record=True) as caught, as_errors():
            results = self._engine.run(
                program,
                torch.from_numpy(ids.copy()),
                rows=lambda wanted: some(kept, wanted),
                dispatch=lambda wanted: Dispatch(
                    shared,
                    Message(some(mine.values, wanted), some(mine.mask, wanted)),
                    dispatch[2],
                ),
                settings=settings,
                observe=observe,
            )
        return {
            "ids": results.ids.numpy(),
            "steps": results.steps.numpy(),
            "losses": results.losses.numpy(),
            "kept": _arrays(results.kept),
            "sent": _packed(results.sent),
            "observed": _arrays(results.observed),
            "failures": results.failures,
            "observe_seconds": results.observe_seconds,
            "notes": [str(x.message) for x in caught if issubclass(x.category, TraceWarning)],
        }


def _engine_of_actor(net: nn.Module, federation: Federation, config: EngineConfig) -> Engine:
    """Return the engine of an actor: vectorized on a GPU, sequential on a CPU.

    The training step of a user's LightningModule cannot be vectorized.
    """
    if find_device(config.device).type == "cuda" and not isinstance(net, LightningNet):
        from flbench.engine.vectorized import VectorizedEngine

        return VectorizedEngine(net, federation, config.altered(device="cuda"))
    from flbench.engine.sequential import SequentialEngine

    # Clients are assigned by the number of workers, on which no result may depend.
    return SequentialEngine(net, federation, config, stacks=False)


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


def _arrays(tree: Tree) -> Arrays:
    """Return the tensors of a tree as NumPy arrays on the CPU."""
    return {name: value.detach().cpu().numpy() for name, value in tree.items()}


def _tensors(arrays: Arrays) -> Tree:
    """Return arrays as tensors; they are copied, because the object store is read-only."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _packed(message: Message) -> tuple[Arrays, Arrays]:
    """Return the values and the masks of a message as arrays."""
    return _arrays(message.values), _arrays(message.mask)


def _message(packed: tuple[Arrays, Arrays]) -> Message:
    """Return a message from its values and masks; the inverse of `_packed`."""
    return Message(_tensors(packed[0]), _tensors(packed[1]))


def _unpacked(arrays: dict[str, Any]) -> Results:
    """Return the results that an actor returned as arrays."""
    return Results(
        ids=torch.from_numpy(np.array(arrays["ids"])),
        steps=torch.from_numpy(np.array(arrays["steps"])),
        losses=torch.from_numpy(np.array(arrays["losses"])),
        kept=_tensors(arrays["kept"]),
        sent=_message(arrays["sent"]),
        observed=_tensors(arrays["observed"]),
        failures=arrays["failures"],
        observe_seconds=arrays["observe_seconds"],
    )


def _in_order(parts: list[Results], ids: Tensor) -> Results:
    """Return the results of all actors as one, in the order of `ids`."""
    place = {client: k for k, client in enumerate(ids.tolist())}
    results = concatenate_results(parts, ids)
    order = torch.tensor(
        sorted(range(len(results.ids)), key=lambda k: place[int(results.ids[k])]), dtype=torch.int64
    )

    def sort(tree: Tree) -> Tree:
        return {name: value[order] for name, value in tree.items()}

    return Results(
        ids=results.ids[order],
        steps=results.steps[order],
        losses=results.losses[order],
        kept=sort(results.kept),
        sent=Message(sort(results.sent.values), sort(results.sent.mask)),
        observed=sort(results.observed),
        failures=tuple(sorted(results.failures, key=lambda failure: place[failure.client])),
        observe_seconds=max((part.observe_seconds for part in parts), default=0.0),
    )
