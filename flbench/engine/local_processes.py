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
from flbench.engine.base import Engine, LocalWork
from flbench.engine.worker import SENT, Worker, train_by_workers
from flbench.models.base import net_leaves
from flbench.workers.nesting import is_worker
from flbench.workers.pool import CouldNotBeginError
from flbench.workers.process_pool import FILES, ProcessPool, SharedArray, gpus_in_turn

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
    """Return the bytes of memory that a worker needs and shares with no other process."""
    return WORKER_BYTES + COPIES * nbytes(net_leaves(net))


def most_processes(config: EngineConfig, net: nn.Module, federation: Federation) -> int:
    """Return how many workers may train clients; with 1, the process that asks trains alone.

    With `engine.workers=auto` these are at most as many as there are cores, as half of the free
    memory allows, and as three quarters of the files that this process may open. Samples are in
    memory once for all workers, and so are clients on their way.

    Args:
        config: Section `engine`; on a GPU with a number of workers.
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
    worker, and all others are trained or evaluated one by one.

    Args:
        engine: The engine of this process, on a CPU or on the first GPU.
        net: The seeded net.
        federation: The samples of all clients.
        config: `workers`, the number of workers; and what their engines need. With `auto`, small
            rounds are not distributed, see `WORTH`, and short runs start no workers. On GPUs it is
            a number, and the workers take the GPUs in turn.
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
        self._pool: ProcessPool | None = None
        self._used = 1
        self._most = most_processes(config, net, federation)
        leaves = net_leaves(net)
        self._bytes, self._scalars = nbytes(leaves), sum(x.numel() for x in leaves.values())
        if is_worker():
            self._stay_alone("it is a worker process itself")

    def run(self, work: LocalWork, ids: Tensor) -> Results:
        """Train the clients; see `Engine.run`."""
        parts = self._parts(work, ids)
        # What is sent to a client is about as large as what it keeps.
        size = max(self._bytes, nbytes(work.rows(ids[:1]))) if len(parts) > 1 else 0
        size += self._bytes if work.program.keeps or work.program.sends else 0
        try:
            if len(parts) > 1 and self._pays(work, ids, size):
                pool = self._opened()
                sizes, tell = self._federation.sizes, self._tell
                results = train_by_workers(pool, work, parts, sizes, tell, size)
                self._used = max(self._used, min(pool.most, len(parts)))
                return results
        except CouldNotBeginError as error:
            self._stay_alone(str(error))
        except BaseException:
            self._end_workers()
            raise
        return self._engine.run(work, ids)

    def stacked(
        self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int
    ) -> int | None:
        """Return how many clients the engine computes at once."""
        return self._engine.stacked(program, observe, batch_size)

    def report(self) -> dict[str, float]:
        """Return measurements of the engine, and `workers`, the number of processes that train."""
        return {**self._engine.report(), "workers": self._used}

    def close(self) -> None:
        """End the workers, and close the engine."""
        self._end_workers()
        self._engine.close()

    def _parts(self, work: LocalWork, ids: Tensor) -> tuple[Tensor, ...]:
        """Return the clients in parts, in their order, of which each one must stay together."""
        if self._most < 2 or not (work.program.steps or work.observe) or not len(ids):
            return ()
        size = work.settings.train.batch_size
        stack = self._engine.stacked(work.program, work.observe, size) or len(ids)
        group = work.settings.group
        if group is not None and group % stack:  # a stack ends where its group ends
            stack = group
        return torch.split(ids, stack)

    def _pays(self, work: LocalWork, ids: Tensor, size: int) -> bool:
        """Return whether clients, for each of which `size` bytes are sent, are distributed."""
        if self._config.workers != "auto":
            return True
        train, sizes = work.settings.train, self._federation.sizes[ids]
        samples = 0.0  # that the clients read; the training on one counts as three
        for step in (*work.program.steps, *work.observe):
            match step:
                case Phase(epochs=int(epochs)):
                    samples += 3.0 * epochs * float(sizes.sum())
                case Phase(steps=int(steps)):
                    samples += 3.0 * steps * train.batch_size * len(ids)
                case Statistic():
                    samples += float(sizes.sum())
        units = samples * (1 + self._scalars / LARGE)
        left = train.rounds - work.settings.draw.round
        is_long = self._pool is not None or units * max(1, left) >= STARTED
        return is_long and units >= WORTH + SENDING * size * len(ids)

    def _opened(self) -> ProcessPool:
        """Return the pool of workers.

        Raises:
            CouldNotBeginError: The net of a user refuses to be pickled, or the system refuses.
        """
        if self._pool is None:
            rest = self._net, self._federation.without_samples(), self._config
            make = partial(Worker, stacks=True)
            try:
                samples = SharedArray(self._federation.x.numpy())
                variables = gpus_in_turn(torch.cuda.device_count())
                self._pool = ProcessPool(make, samples, rest, most=self._most, variables=variables)
            except Exception as error:
                reason = f"workers cannot be started ({type(error).__name__}: {error})"
                raise CouldNotBeginError(reason) from error
        return self._pool

    def _stay_alone(self, reason: str) -> None:
        """Train in this process from now on, with a note if the user asked for more."""
        self._end_workers()
        self._most = self._used = 1
        if self._config.workers not in ("auto", 1):
            self._tell(
                f"engine.workers={self._config.workers}: this process trains alone, because"
                f" {reason.rstrip('.')}."
            )

    def _end_workers(self) -> None:
        """End all workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
