"""Clients dealt to Ray actors: on the cores or GPUs of this machine, or of a cluster.

An actor holds an engine of its own, gets its clients of a round in one call, and remembers nothing
between calls. So an actor that dies is started again, and its clients are trained again.
"""

import os
import socket
from typing import Any, Final

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError
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

RESTARTS: Final = 3  # of an actor, before the run gives up
Arrays = dict[str, NDArray[Any]]


class RayEngine:
    """Trains on actors; the results are those of the engine that the actors hold.

    For any number of actors they are the sequential engine's, bit for bit, with equal
    `engine.threads`: a client's training depends on no other client.

    Args:
        net: the seeded net.
        federation: the samples; they go to the object store once.
        config: workers, address, threads, device, precision.
    Raises: ConfigError if there is no cluster at `engine.address`, or too few CPUs or GPUs, or if
        the device cannot compute in that precision.
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
        count = _workers(config, on_gpu=on_gpu)
        # The object store shares the samples between all actors of a machine; what is put there
        # must stay referenced, or an actor could not be started again.
        self._samples = ray.put(federation.x.numpy())
        self._rest = ray.put((net, federation.without_samples(), config))
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
        for actor, positions in zip(self._actors, self._deal(ids), strict=True):
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
            parts = [_unpacked(found) for found in ray.get(calls)]
        except ray.exceptions.ActorDiedError as error:
            raise RunError(
                f"a worker of engine.name=ray died {RESTARTS + 1} times. Is memory short? Lower"
                " engine.workers."
            ) from error
        return _in_order(parts, ids)

    def block(self, batch_size: int) -> int | None:
        """Return None: each actor decides what it stacks."""
        return None

    def report(self) -> dict[str, float]:
        """Return the number of actors."""
        return {"workers": len(self._actors)}

    def close(self) -> None:
        """End the actors, and the cluster if this engine started it."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._owns_ray:
            ray.shutdown()

    def _deal(self, ids: Tensor) -> list[Tensor]:
        """Return the positions in `ids` for each actor: the next largest to the least loaded."""
        work = self._sizes[ids].tolist()
        loads = [0.0] * len(self._actors)
        dealt: list[list[int]] = [[] for _ in self._actors]
        for position in sorted(range(len(work)), key=lambda k: (-work[k], k)):
            least = min(range(len(loads)), key=lambda k: (loads[k], k))
            dealt[least].append(position)
            loads[least] += work[position] + 1
        return [torch.tensor(sorted(positions), dtype=torch.int64) for positions in dealt]


class Actor:
    """One worker process.

    Args:
        samples: the federation's samples, in shared memory and read-only.
        rest: net, federation without samples, configuration.
    """

    def __init__(self, samples: NDArray[Any], rest: tuple[nn.Module, Federation, Any]) -> None:
        net, federation, config = rest
        torch.set_num_threads(config.threads or 1)
        self._engine = _inner(net, federation.with_samples(samples), config)

    def ready(self) -> int:
        """Return the process's id, once the engine is there."""
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
        """Train these clients; return the results as arrays."""
        place = {int(client): k for k, client in enumerate(ids)}
        kept = _tensors(rows)
        shared, mine = (_message(packed) for packed in dispatch[:2])

        def some(tree: Tree, wanted: Tensor) -> Tree:
            index = torch.tensor([place[client] for client in wanted.tolist()])
            return {name: value[index] for name, value in tree.items()}

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
        }


def _inner(net: nn.Module, federation: Federation, config: EngineConfig) -> Engine:
    """Return the engine of an actor: stacks on a GPU, one client after the other on a core."""
    if find_device(config.device).type == "cuda":
        from flbench.engine.vectorized import VectorizedEngine

        return VectorizedEngine(net, federation, config.model_copy(update={"device": "cuda"}))
    from flbench.engine.sequential import SequentialEngine

    return SequentialEngine(net, federation, config)


def connect(address: str | None, *, key: str = "engine.address", cpus: int | None = None) -> bool:
    """Join or start a Ray cluster; return whether this process started or concatenate_results it.

    Args:
        address: of a running cluster, `auto` to find it, None to start one on this machine.
        key: that the user set.
        cpus: that a cluster of our own says it has (default: the cores at hand).
    Raises: ConfigError if there is none at the address.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        # Ray's own lines on the terminal speak of its inside; what fails comes as an exception.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        # `local`: without it Ray would join a cluster that an environment variable names.
        cores = len(os.sched_getaffinity(0)) if cpus is None else cpus
        options |= {"address": "local", "include_dashboard": False, "num_cpus": cores}
    else:
        options["address"] = address
        _probe(address, key)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"`{key}`: no Ray cluster answers at {address or 'this machine'} ({error})."
        ) from error
    return True


def _probe(address: str, key: str) -> None:
    """Raise a ConfigError if nothing listens at HOST:PORT; Ray itself would ask for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto`, or a name that Ray knows
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"`{key}`: no Ray cluster answers at {address} ({error}). Start one with"
            " `ray start --head`, or leave it out."
        ) from error


def _workers(config: EngineConfig, *, on_gpu: bool) -> int:
    """Return the number of actors: as asked, or one for each CPU or GPU of the cluster."""
    resource = "GPU" if on_gpu else "CPU"
    there = int(ray.cluster_resources().get(resource, 0))
    count = there if config.workers == "auto" else config.workers
    if not 1 <= count <= there:
        raise ConfigError(
            f"`engine.workers`={config.workers} needs as many {resource}s; the Ray cluster has"
            f" {there}."
        )
    return count


def _wait(actors: list[Any], config: EngineConfig) -> None:
    """Wait for the actors. Raises: RunError if one does not come up."""
    try:
        ray.get([actor.ready.remote() for actor in actors], timeout=120)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise RunError(
            f"the {len(actors)} workers of engine.name=ray did not start within 120 s ({error})."
            f" Lower engine.workers (now {config.workers})."
        ) from error


def _arrays(tree: Tree) -> Arrays:
    return {name: value.detach().cpu().numpy() for name, value in tree.items()}


def _tensors(arrays: Arrays) -> Tree:
    """Return tensors of their own: what comes out of the object store is read-only."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _packed(message: Message) -> tuple[Arrays, Arrays]:
    return _arrays(message.values), _arrays(message.mask)


def _message(packed: tuple[Arrays, Arrays]) -> Message:
    return Message(_tensors(packed[0]), _tensors(packed[1]))


def _unpacked(found: dict[str, Any]) -> Results:
    return Results(
        ids=torch.from_numpy(np.array(found["ids"])),
        steps=torch.from_numpy(np.array(found["steps"])),
        losses=torch.from_numpy(np.array(found["losses"])),
        kept=_tensors(found["kept"]),
        sent=_message(found["sent"]),
        observed=_tensors(found["observed"]),
        failures=found["failures"],
    )


def _in_order(parts: list[Results], ids: Tensor) -> Results:
    """Return the results of all actors as one, in the order of `ids`."""
    place = {client: k for k, client in enumerate(ids.tolist())}
    whole = concatenate_results(parts, ids)
    order = torch.tensor(
        sorted(range(len(whole.ids)), key=lambda k: place[int(whole.ids[k])]), dtype=torch.int64
    )

    def sort(tree: Tree) -> Tree:
        return {name: value[order] for name, value in tree.items()}

    return Results(
        ids=whole.ids[order],
        steps=whole.steps[order],
        losses=whole.losses[order],
        kept=sort(whole.kept),
        sent=Message(sort(whole.sent.values), sort(whole.sent.mask)),
        observed=sort(whole.observed),
        failures=tuple(sorted(whole.failures, key=lambda failure: place[failure.client])),
    )
