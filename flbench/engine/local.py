"""Clients distributed over processes of this machine, beside an engine of this process.

Results do not depend on who trains a client. A rule that only reads the configuration decides who
does: small rounds are trained by this process, and short runs start no workers.
"""

import resource
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Phase, Statistic, Step
from flbench.config.schema import EngineConfig
from flbench.core.control_groups import available_cores
from flbench.core.tree import nbytes
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine import memory
from flbench.engine.base import Dispatcher, Engine, KeptRows, RoundSettings
from flbench.engine.worker import SENT, Call, Worker, train_by_workers
from flbench.models.base import net_leaves
from flbench.workers.nesting import reason_against_workers
from flbench.workers.pool import CouldNotBeginError
from flbench.workers.process_pool import FILES, ProcessPool, SharedArray

# A unit of work is one sample of a small net in a forward pass: some microseconds.
LARGE: Final = 100_000
"""Scalars of a net whose samples cost twice as much as those of a very small one."""
STARTED: Final = 200_000
"""Units that the rest of a run must have before workers are started for it: about a second."""
WORTH: Final = 4_000
"""Units that a round must have so that its clients are distributed."""
SENDING: Final = 1e-3
"""Further units that it must have for each byte that is sent to workers and back."""
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
    most = min(available_cores() // config.threads, files, free // worker_bytes(net))
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
        config: `workers`, the number of workers; and what their engines need. With `auto`, small
            rounds are not distributed, see `WORTH`, and short runs start no workers.
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
        self._is_alone, self._used = False, 1
        leaves = net_leaves(net)
        self._bytes, self._scalars = nbytes(leaves), sum(x.numel() for x in leaves.values())
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
        parts = self._parts(call, ids)
        # What is sent to a client is about as large as what it keeps.
        size = max(self._bytes, nbytes(rows(ids[:1]))) if len(parts) > 1 else 0
        size += self._bytes if program.keeps or program.sends else 0
        if len(parts) > 1 and self._pays(call, ids, size) and (pool := self._opened()) is not None:
            self._used = max(self._used, min(pool.most, len(parts)))
            try:
                return train_by_workers(pool, call, parts, self._federation.sizes, self._tell, size)
            except CouldNotBeginError as error:
                self._stay_alone(str(error))
            except BaseException:
                self._end_workers()
                raise
        return call.run(self._engine, ids)

    def stacked(
        self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int
    ) -> int | None:
        """Return how many clients the engine computes at once."""
        return self._engine.stacked(program, observe, batch_size)

    def start(self) -> int:
        """Start all workers, and return their number when they are ready; 1 without any."""
        if (pool := self._opened()) is None:
            return 1
        try:
            for k in range(pool.most):
                pool.submit(k, "ready")
            count = 0
            while count < pool.most:
                count += len(pool.ended(1.0))
        except CouldNotBeginError as error:
            self._stay_alone(str(error))
            return 1
        return pool.most

    def report(self) -> dict[str, float]:
        """Return measurements of the engine, and `workers`, the number of processes that train."""
        return {**self._engine.report(), "workers": self._used}

    def close(self) -> None:
        """End the workers, and close the engine."""
        self._end_workers()
        self._engine.close()

    def _parts(self, call: Call, ids: Tensor) -> tuple[Tensor, ...]:
        """Return the clients in parts, in their order, of which each one must stay together."""
        if self._is_alone or not (call.program.steps or call.observe) or not len(ids):
            return ()
        size = call.settings.train.batch_size
        stack = self._engine.stacked(call.program, call.observe, size) or len(ids)
        group = call.settings.group
        if group is not None and group % stack:  # a stack ends where its group ends
            stack = group
        return torch.split(ids, stack)

    def _pays(self, call: Call, ids: Tensor, size: int) -> bool:
        """Return whether clients, for each of which `size` bytes are sent, are distributed."""
        if not self._is_auto:
            return True
        sizes, steps = self._federation.sizes[ids], (*call.program.steps, *call.observe)
        samples = sum(_samples(step, sizes, call.settings.train.batch_size) for step in steps)
        work = samples * (1 + self._scalars / LARGE)
        if work < WORTH + SENDING * size * len(ids):
            return False
        left = call.settings.train.rounds - call.settings.draw.round
        return self._pool is not None or work * max(1, left) >= STARTED

    def _opened(self) -> ProcessPool | None:
        """Return the pool of workers; None if this process trains alone."""
        if self._pool is not None or self._is_alone:
            return self._pool
        most = most_processes(self._config, self._net, self._federation)
        if most < 2:
            self._is_alone = True
            return None
        rest = self._net, self._federation.without_samples(), self._config
        try:
            self._samples = SharedArray(self._federation.x.numpy())
            self._pool = ProcessPool(partial(Worker, stacks=True), self._samples, rest, most=most)
        except Exception as error:  # noqa: BLE001  # the net of a user may refuse to be pickled
            self._stay_alone(f"workers cannot be started ({type(error).__name__}: {error})")
            return None
        if self._is_auto:
            self._tell(f"engine.workers=auto: up to {most} processes train the clients.")
        return self._pool

    def _stay_alone(self, reason: str) -> None:
        """Train in this process from now on, with a note if the user asked for more.

        Args:
            reason: Why no worker trains.
        """
        self._end_workers()
        self._is_alone, self._used = True, 1
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


def _samples(step: Step, sizes: Tensor, batch_size: int) -> float:
    """Return how many samples clients read, about; the training on a sample counts as three.

    Args:
        step: The step.
        sizes: Numbers of samples [K] of the clients.
        batch_size: Samples of an optimizer step.
    """
    match step:
        case Phase(epochs=int(epochs)):
            return 3.0 * epochs * float(sizes.sum())
        case Phase(steps=int(steps)):
            return 3.0 * steps * batch_size * len(sizes)
        case Statistic():
            return float(sizes.sum())
    return 0.0
