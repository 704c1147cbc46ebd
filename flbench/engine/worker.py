"""What a worker process does for an engine, and how clients are distributed over workers.

Actors of Ray and processes of this machine are the same class, `Worker`. A worker has an engine of
its own and keeps no state between calls, so that one that has died is replaced by a new one.
"""

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import RunError
from flbench.core.raised import as_errors
from flbench.core.storage import Storage
from flbench.core.types import Dispatch, Message, Results, Tree
from flbench.data.federation import Federation
from flbench.engine.base import (
    RESULTS,
    Dispatcher,
    Engine,
    KeptRows,
    LostWorkersError,
    RoundSettings,
    concatenate_results,
    find_device,
)
from flbench.models.base import is_lightning
from flbench.workers.pool import RESTARTS, Pool

SENT: Final = 2**29
"""Bytes that are sent to workers and returned by them at the same time, so that large models of
many clients are never in memory together."""
PERIOD: Final = 1.0  # seconds between two looks at workers that train

Arrays = dict[str, NDArray[Any]]
Warned = tuple[str, type[Warning], str, int]
"""A warning: its text, its class, the file and the line of the code that it names."""
_SHOWN: Final[dict[Any, Any]] = {}
"""Where Python notes which warnings of workers it has shown in this process."""


class Worker:
    """An engine in a process of its own.

    Args:
        samples: The inputs of all samples, in memory that processes share.
        rest: Net, federation without its samples, and configuration of the engine.
        stacks: Whether the sequential engine may stack clients to evaluate small models. Whole
            stacks must then be given to one worker, so that no result depends on their number.
    """

    def __init__(
        self,
        samples: NDArray[Any],
        rest: tuple[nn.Module, Federation, EngineConfig],
        *,
        stacks: bool = False,
    ) -> None:
        net, federation, config = rest
        torch.set_num_threads(config.threads)
        self.engine = _engine(net, federation.with_samples(samples), config, stacks=stacks)

    def ready(self) -> None:
        """Return when the engine is ready."""

    def run(
        self,
        program: LocalProgram,
        ids: NDArray[np.int64],
        rows: Arrays,
        dispatch: tuple[Any, Any, dict[str, float]],
        settings: RoundSettings,
        observe: tuple[Step, ...],
    ) -> dict[str, Any]:
        """Train these clients; return the fields of `Results` as NumPy arrays, and warnings.

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

        with warnings.catch_warnings(record=True) as warned, as_errors():
            results = self.engine.run(
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
            "kept": arrays(results.kept),
            "sent": packed(results.sent),
            "observed": arrays(results.observed),
            "failures": results.failures,
            "observe_seconds": results.observe_seconds,
            "warned": list(dict.fromkeys(map(_portable, warned))),
        }


def _engine(
    net: nn.Module, federation: Federation, config: EngineConfig, *, stacks: bool
) -> Engine:
    """Return the engine of a worker: that of the configuration; see `Worker`.

    A worker of Ray has the vectorized engine on a GPU, and the sequential one on a CPU. The
    training step of a user's LightningModule cannot be vectorized.
    """
    on_gpu = find_device(config.device).type == "cuda"
    if config.name == "vectorized" or (on_gpu and not is_lightning(net)):
        from flbench.engine.vectorized import VectorizedEngine

        config = config.altered(device="cuda") if on_gpu else config
        return VectorizedEngine(net, federation, config)
    from flbench.engine.sequential import SequentialEngine

    return SequentialEngine(net, federation, config, stacks=stacks)


@dataclass(frozen=True)
class Call:
    """Arguments of `Engine.run` besides the clients."""

    program: LocalProgram
    rows: KeptRows
    dispatch: Dispatcher
    settings: RoundSettings
    observe: tuple[Step, ...]

    def run(self, engine: Engine, ids: Tensor) -> Results:
        """Train some clients with an engine of this process."""
        return engine.run(
            self.program,
            ids,
            rows=self.rows,
            dispatch=self.dispatch,
            settings=self.settings,
            observe=self.observe,
        )

    def given(self, ids: Tensor) -> tuple[Any, ...]:
        """Return what `Worker.run` takes for some clients."""
        dispatch = self.dispatch(ids)
        sent = packed(dispatch.shared), packed(dispatch.rows), dict(dispatch.numbers)
        return (
            *(self.program, ids.numpy(), arrays(self.rows(ids)), sent),
            *(self.settings, self.observe),
        )


def distributed(
    pool: Pool,
    call: Call,
    parts: Sequence[Tensor],
    work: Sequence[float],
    size: int,
    tell: Callable[[str], None],
) -> list[Results]:
    """Train clients with the workers of a pool; those of a lost worker go to another one.

    Args:
        pool: The workers.
        call: What the clients train.
        parts: Ids of clients, in parts of which each one is trained by one worker.
        work: Work of each part, such as its number of samples.
        size: Bytes that are sent and returned for a client, about.
        tell: Function that gets notes for the user.

    Raises:
        LostWorkersError: The same clients have lost too many workers, or no worker is left.
    """
    turns = -(-size * sum(map(len, parts)) // SENT)
    pieces = assign(work, min(len(parts), max(1, pool.ready) * max(1, turns)))
    left = deque(tuple(one) for one in pieces if one)
    losses: Counter[tuple[int, ...]] = Counter()
    returned: list[dict[str, Any]] = []
    running = 0
    while left or running:
        while left and running < max(1, pool.ready):
            pool.submit(left[0], "run", *call.given(torch.cat([parts[k] for k in left[0]])))
            left.popleft()
            running += 1
        try:
            ended = pool.ended(PERIOD)
        except RunError as error:
            raise LostWorkersError(str(error)) from error
        for one in ended:
            running -= 1
            if one.lost is None:
                returned.append(one.value)
                continue
            losses[one.key] += 1
            if one.is_final or losses[one.key] > RESTARTS:
                raise LostWorkersError(
                    f"the training of the same clients lost {losses[one.key]} workers: {one.lost}"
                    " Resume the run with a lower engine.workers; 1 trains in one process."
                )
            tell(
                f"a worker was lost: {one.lost} Its clients are trained again, with equal results."
            )
            left.append(one.key)
    warn_again(warned for found in returned for warned in found["warned"])
    return [unpacked(found) for found in returned]


def assign(work: Sequence[float], workers: int) -> list[list[int]]:
    """Return the positions of what each worker gets, in ascending order.

    The largest part that is left goes to the worker with the least work so far.

    Args:
        work: Work of each part, such as the number of a client's samples.
        workers: Number of workers.

    >>> assign([5, 1, 2, 2], 2)
    [[0, 1], [2, 3]]
    """
    loads = [(0.0, k) for k in range(workers)]
    assigned: list[list[int]] = [[] for _ in loads]
    for position in sorted(range(len(work)), key=lambda k: (-work[k], k)):
        load, least = loads[0]
        assigned[least].append(position)
        heapreplace(loads, (load + work[position] + 1, least))
    return [sorted(positions) for positions in assigned]


def arrays(tree: Tree) -> Arrays:
    """Return the tensors of a tree as NumPy arrays on the CPU."""
    return {name: value.detach().cpu().numpy() for name, value in tree.items()}


def packed(message: Message) -> tuple[Arrays, Arrays]:
    """Return the values and the masks of a message as arrays."""
    return arrays(message.values), arrays(message.mask)


def unpacked(found: dict[str, Any]) -> Results:
    """Return the results that a worker returned as arrays."""
    return Results(
        ids=_tensor(found["ids"]),
        steps=_tensor(found["steps"]),
        losses=_tensor(found["losses"]),
        kept=_tensors(found["kept"]),
        sent=_message(found["sent"]),
        observed=_tensors(found["observed"]),
        failures=found["failures"],
        observe_seconds=found["observe_seconds"],
    )


def in_order(parts: list[Results], ids: Tensor, storage: Storage) -> Results:
    """Return the results of all workers as one, in the order of `ids`.

    Args:
        parts: The results of each worker.
        ids: Ids [K] of the clients.
        storage: Where the results are stored.
    """
    place = {client: k for k, client in enumerate(ids.tolist())}
    results = concatenate_results(parts, ids, storage)
    order = torch.tensor(
        sorted(range(len(results.ids)), key=lambda k: place[int(results.ids[k])]), dtype=torch.int64
    )

    def sort(tree: Tree) -> Tree:
        return storage.rows(tree, order, RESULTS)

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


def warn_again(warned: Iterable[Warned]) -> None:
    """Issue the warnings of workers in this process, whose filters decide about them.

    Args:
        warned: The warnings.

    Raises:
        Warning: The filters say that such a warning is an error.
    """
    for text, category, file, line in dict.fromkeys(warned):
        warnings.warn_explicit(text, category, file, line, registry=_SHOWN)


def _portable(warning: warnings.WarningMessage) -> Warned:
    """Return a warning with the class of Python that its own class, which may be local, is of."""
    category = next(one for one in warning.category.__mro__ if one.__module__ == "builtins")
    return str(warning.message), category, warning.filename, warning.lineno


def _tensor(value: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, which shares its memory if that can be written to.

    PyTorch aligns the memory of tensors to 64 bytes, and the results of some operations may depend
    on it.
    """
    found = np.asarray(value)
    if not found.flags.writeable:  # in the object store of Ray
        found = found.copy()
    tensor = torch.from_numpy(found)
    return tensor if found.ctypes.data % 64 == 0 else tensor.clone()


def _tensors(found: Arrays) -> Tree:
    """Return arrays as tensors; see `_tensor`."""
    return {name: _tensor(value) for name, value in found.items()}


def _message(found: tuple[Arrays, Arrays]) -> Message:
    """Return a message from its values and masks; the inverse of `packed`."""
    return Message(_tensors(found[0]), _tensors(found[1]))
