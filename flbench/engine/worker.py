"""A worker that trains clients, and how clients are distributed over workers.

Actors of Ray and processes of this machine are the same class, `Worker`. A worker has an engine of
its own and keeps no state between calls, so that one that has died is replaced by a new one.
"""

import io
import pickle
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapreplace
from typing import Any, Final

import cloudpickle
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.config.schema import EngineConfig
from flbench.core.tree import take
from flbench.core.types import Dispatch, Message, Results, Tree
from flbench.core.user_code_errors import as_errors
from flbench.data.federation import Federation
from flbench.engine.base import Engine, LocalWork, find_device, gathered
from flbench.models.base import is_lightning
from flbench.workers.pool import RESTARTS, LostError, Pool

SENT: Final = 2**29
"""Bytes that are sent to workers and returned by them at the same time, so that large models of
many clients are never in memory together."""
PERIOD: Final = 1.0  # seconds between two looks at workers that train

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

    def run(self, content: bytes) -> bytes:
        """Train clients; return their `Results`, and the warnings of their training.

        Args:
            content: What `_for_worker` returns.
        """
        work, ids = pickle.loads(content)
        with warnings.catch_warnings(record=True) as warned, as_errors():
            results = self.engine.run(work, ids)
        said = {(str(one.message), _kind(one), one.filename, one.lineno): None for one in warned}
        return _packed((results, [*said]))


def _engine(
    net: nn.Module, federation: Federation, config: EngineConfig, *, stacks: bool
) -> Engine:
    """Return the engine of a worker: that of the configuration; see `Worker`.

    A worker of Ray has the vectorized engine on a GPU, and the sequential one on a CPU. The
    training step of a user's LightningModule cannot be vectorized.
    """
    on_gpu = find_device(config.device).type == "cuda"
    by_ray = config.name == "ray" and on_gpu and not is_lightning(net)
    if config.name == "vectorized" or by_ray:
        from flbench.engine.vectorized import VectorizedEngine

        config = config.altered(device="cuda") if on_gpu else config
        return VectorizedEngine(net, federation, config)
    from flbench.engine.sequential import SequentialEngine

    return SequentialEngine(net, federation, config, stacks=stacks)


def _for_worker(work: LocalWork, ids: Tensor) -> bytes:
    """Return what `Worker.run` takes for some clients: their work, with their own tensors."""
    dispatch = work.dispatch(ids)
    dispatch = replace(dispatch, numbers=dict(dispatch.numbers))
    rows, sent = partial(_some, ids, work.rows(ids)), partial(_sent, ids, dispatch)
    return _packed((replace(work, rows=rows, dispatch=sent), ids))


def _some(ids: Tensor, tree: Tree, wanted: Tensor) -> Tree:
    """Return the rows of some clients of a tree with those of the clients `ids`."""
    return take(tree, (wanted[:, None] == ids).nonzero()[:, 1])


def _sent(ids: Tensor, dispatch: Dispatch, wanted: Tensor) -> Dispatch:
    """Return what some of the clients `ids` are sent."""
    rows, mask = (_some(ids, tree, wanted) for tree in (dispatch.rows.values, dispatch.rows.mask))
    return replace(dispatch, rows=Message(rows, mask))


def train_by_workers(
    pool: Pool,
    work: LocalWork,
    parts: Sequence[Tensor],
    sizes: Tensor,
    tell: Callable[[str], None],
    sent: int = 0,
) -> Results:
    """Train clients with the workers of a pool; those of a lost worker go to another one.

    Args:
        pool: The workers.
        work: What the clients compute.
        parts: Ids of clients, in parts of which each one is trained by one worker.
        sizes: Numbers of samples of all clients.
        tell: Function that gets notes for the user.
        sent: Bytes that are sent and returned for a client, about.

    Raises:
        LostError: The same clients have lost too many workers, or no worker is left.
        CouldNotBeginError: A worker could not make its engine.
    """
    ids = torch.cat(list(parts))
    loads = [float((sizes[part] + 1).sum()) for part in parts]
    turns = max(1, -(-sent * len(ids) // SENT))
    left = deque(map(tuple, assign(loads, min(len(parts), pool.most * turns))))
    losses: Counter[tuple[int, ...]] = Counter()
    found: list[Results] = []
    running = 0
    while left or running:
        while left and running < pool.most:
            piece = left.popleft()
            pool.submit(piece, "run", _for_worker(work, torch.cat([parts[k] for k in piece])))
            running += 1
        for one in pool.ended(PERIOD):
            running -= 1
            if one.lost is None:
                results, warned = pickle.loads(one.value)
                found.append(results)
                for text, kind, file, line in warned:  # filters of this process decide about them
                    warnings.warn_explicit(text, kind, file, line, registry=_SHOWN)
                continue
            losses[one.key] += 1
            if losses[one.key] > RESTARTS:
                raise LostError(
                    f"the training of the same clients lost {losses[one.key]} workers: {one.lost}"
                    " Resume the run with a lower engine.workers; 1 trains in one process."
                )
            tell(
                f"a worker was lost: {one.lost} Its clients are trained again, with equal results."
            )
            left.append(one.key)
    seconds = max((one.observe_seconds for one in found), default=0.0)
    return replace(gathered(found, ids, work.settings.storage), observe_seconds=seconds)


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


def _kind(warning: warnings.WarningMessage) -> type[Warning]:
    """Return the class of Python that the class of a warning, which may be local, is of."""
    return next(one for one in warning.category.__mro__ if one.__module__ == "builtins")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends tensors as arrays, which takes less time than PyTorch's own way."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and not thing.requires_grad:
            return _tensor, (thing.cpu().numpy(),)
        return super().reducer_override(thing)


def _packed(thing: Any) -> bytes:
    """Return the pickle of an object with tensors."""
    file = io.BytesIO()
    _Pickler(file).dump(thing)
    return file.getvalue()


def _tensor(value: NDArray[Any]) -> Tensor:
    """Return an array as a tensor.

    PyTorch aligns the memory of tensors to 64 bytes, and the results of some operations may depend
    on it.
    """
    tensor = torch.from_numpy(value)
    return tensor if value.ctypes.data % 64 == 0 else tensor.clone()
