"""Clients distributed over processes of this machine, beside an engine of this process.

Until the workers are ready this process trains alone, so that nobody waits for them, and short runs
start none. Results do not depend on who trains a client.
"""

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig
from flbench.core.tree import nbytes
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine import memory
from flbench.engine.base import Dispatcher, Engine, KeptRows, RoundSettings
from flbench.engine.worker import SENT, Call, Worker, distributed, in_order
from flbench.models.base import net_leaves
from flbench.workers import cores
from flbench.workers.nesting import reason_against_workers
from flbench.workers.process_pool import FILES, ProcessPool, SharedArray

SPENT: Final = 0.2
"""Seconds of training in this process before workers are started. A run that ends before would gain
nothing by them."""
WORTH: Final = 0.02
"""Seconds of training in a round from which on its clients are distributed."""
SENDING: Final = 4e-9
"""Seconds of training for each byte of clients from which on they are distributed. Sending a byte
takes about half of it."""
WORKER_BYTES: Final = 250 * 2**20
"""Memory of a worker that it shares with no other process, besides net and clients. Measured: 0.2
GiB with LeNet-5."""
COPIES: Final = 8
"""Copies of the leaves of the net that a worker needs for the training of one client."""
STACKED_WORKERS: Final = 3
"""Workers of the vectorized engine with `engine.workers=auto`. A block of each may take a quarter
of the memory, see `engine.vectorized`."""


def worker_bytes(net: nn.Module) -> int:
    """Return the bytes of memory that a worker needs and shares with no other process.

    Args:
        net: The net of a client.
    """
    return WORKER_BYTES + COPIES * nbytes(net_leaves(net))


def most_processes(config: EngineConfig, net: nn.Module, federation: Federation) -> int:
    """Return how many workers may train clients; with 1, the process that asks trains alone.

    With `engine.workers=auto` these are at most as many as there are cores, as half of the free
    memory allows, and as three quarters of the files that this process may open. Samples are in
    memory once for all workers, and so are clients on their way.

    Args:
        config: Section `engine`, on a CPU.
        net: The net of a client.
        federation: The samples of all clients.
    """
    if config.workers != "auto":
        return config.workers
    free = memory.free(torch.device("cpu")) // 2 - federation.x.nbytes - SENT
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // (4 * FILES)
    most = min(cores.available() // config.threads, files, free // worker_bytes(net))
    return max(1, min(most, STACKED_WORKERS) if config.name == "vectorized" else most)


class LocalEngine:
    """Trains clients with an engine of this process, or with workers of this machine.

    Results are those of the engine, bit for bit, for any number of workers: clients that are
    stacked together, by the vectorized engine or in the evaluation of small models, go to one
    worker, and all others are trained or evaluated one by one. What only copies tensors is left to
    the engine.

    Args:
        engine: The engine of this process, on a CPU.
        net: The seeded net.
        federation: The samples of all clients.
        config: `workers`, the number of workers; and what their engines need. With `auto`, workers
            are started when this process has trained for `SPENT` seconds, and clients of a round
            are distributed if their training takes `WORTH` seconds.
        tell: Function that gets notes for the user.
    """

    def __init__(
        self,
        engine: Engine,
        net: nn.Module,
        federation: Federation,
        config: EngineConfig,
        tell: Callable[[str], None],
    ) -> None:
        self._engine, self._tell = engine, tell
        self._net, self._federation, self._config = net, federation, config
        self._is_auto = config.workers == "auto"
        self._pool: ProcessPool | None = None
        self._samples: SharedArray | None = None
        self._spent = 0.0
        self._seconds: dict[Any, float] = {}  # by unit of work, for the kinds of steps of a call
        self._is_alone, self._used = False, 1
        if (reason := reason_against_workers()) is not None:
            self._stay_alone(reason)

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
        """Train the clients; see `Engine.run`."""
        call = Call(program, rows, dispatch, settings, observe)
        if self._is_alone or not (program.steps or observe) or not len(ids):
            return call.run(self._engine, ids)
        parts = self._parts(call, ids)
        work = [float((self._federation.sizes[part] + 1).sum()) for part in parts]
        if len(parts) < 2 or not self._is_worthwhile(call, sum(work), ids):
            return self._measured(call, ids, sum(work))
        try:
            return self._together(call, ids, parts, work)
        except BaseException:
            self._end_workers()
            raise

    def block(self, batch_size: int) -> int | None:
        """Return how many clients the engine stacks."""
        return self._engine.block(batch_size)

    def stacked(
        self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int
    ) -> int | None:
        """Return how many clients the engine computes at once."""
        return self._engine.stacked(program, observe, batch_size)

    def start(self) -> int:
        """Start all workers, wait until they are ready, and return their number; 1 without any."""
        most = most_processes(self._config, self._net, self._federation)
        while not self._is_ready(most) and not self._is_alone:
            time.sleep(0.01)
        return 1 if self._pool is None else self._pool.ready

    def report(self) -> dict[str, float]:
        """Return measurements of the engine, and `workers`, the number of processes that train."""
        return {**self._engine.report(), "workers": self._used}

    def close(self) -> None:
        """End the workers, and close the engine."""
        self._end_workers()
        self._engine.close()

    def _parts(self, call: Call, ids: Tensor) -> list[Tensor]:
        """Return the clients in parts, in their order, of which each one must stay together."""
        size = call.settings.train.batch_size
        stack = self._engine.stacked(call.program, call.observe, size) or len(ids)
        group = call.settings.group
        if group is not None and group % stack:  # a stack ends where its group ends
            stack = group
        return list(torch.split(ids, stack))

    def _bytes(self, call: Call, ids: Tensor) -> int:
        """Return about how many bytes a worker gets for a client and returns."""
        net = nbytes(net_leaves(self._net))
        size = max(net, nbytes(call.rows(ids[:1])))  # what the server sends is about as large
        return size + net if call.program.keeps or call.program.sends else size

    def _is_worthwhile(self, call: Call, work: float, ids: Tensor) -> bool:
        """Return whether clients are distributed, or trained in this process as workers start."""
        seconds = self._seconds.get(_kind(call))
        if not self._is_auto or seconds is None:
            return not self._is_auto
        expected = seconds * work
        if expected < WORTH + SENDING * len(ids) * self._bytes(call, ids):
            return False
        return max(self._spent, expected) >= SPENT

    def _measured(self, call: Call, ids: Tensor, work: float) -> Results:
        """Train clients in this process, and measure the time."""
        begin = time.perf_counter()
        results = call.run(self._engine, ids)
        seconds = time.perf_counter() - begin
        self._seconds[_kind(call)] = seconds / work
        self._spent += seconds
        return results

    def _together(
        self, call: Call, ids: Tensor, parts: Sequence[Tensor], work: Sequence[float]
    ) -> Results:
        """Train clients in this process until the workers are ready, and the others with them."""
        found: list[Results] = []
        done = 0
        while done < len(parts) and not self._is_ready(len(parts)):
            found.append(self._measured(call, parts[done], work[done]))
            done += 1
        if done < len(parts):
            assert self._pool is not None
            self._used = max(self._used, min(self._pool.ready, len(parts) - done))
            size = self._bytes(call, ids)
            found += distributed(self._pool, call, parts[done:], work[done:], size, self._tell)
        return in_order(found, ids, call.settings.storage)

    def _is_ready(self, parts: int) -> bool:
        """Return whether all workers are ready, at most one for each part; start those missing."""
        if self._is_alone:
            return False
        try:
            pool = self._opened()
            if pool is None:
                return False
            pool.most = max(pool.most, min(self._most, parts))
            pool.fill()
        except Exception as error:  # noqa: BLE001  # the net of a user may refuse to be pickled
            self._stay_alone(f"workers cannot be started ({type(error).__name__}: {error})")
            return False
        if pool.failed is not None:
            self._stay_alone(pool.failed)
        return pool.failed is None and pool.ready == pool.most

    def _opened(self) -> ProcessPool | None:
        """Return the pool of workers; None if this process trains alone."""
        if self._pool is None:
            self._most = most_processes(self._config, self._net, self._federation)
            if self._most < 2:
                self._is_alone = True
                return None
            self._samples = SharedArray(self._federation.x.numpy())
            rest = self._net, self._federation.without_samples(), self._config
            self._pool = ProcessPool(partial(Worker, stacks=True), self._samples, rest)
            if self._is_auto:
                self._tell(f"engine.workers=auto: up to {self._most} processes train the clients.")
        return self._pool

    def _stay_alone(self, reason: str) -> None:
        """Train in this process from now on, with a note if the user asked for more.

        Args:
            reason: Why no worker trains.
        """
        self._end_workers()
        self._is_alone = True
        if not self._is_auto and self._config.workers != 1:
            self._tell(
                f"engine.workers={self._config.workers}: this process trains alone, because"
                f" {reason.rstrip('.')}."
            )

    def _end_workers(self) -> None:
        """End all workers."""
        pool, samples = self._pool, self._samples
        self._pool = self._samples = None
        if pool is not None:
            pool.close()
        if samples is not None:
            samples.close()


def _kind(call: Call) -> tuple[type[Step], ...]:
    """Return the kinds of the steps of a client, which decide about how long they take."""
    return tuple(map(type, (*call.program.steps, *call.observe)))
