"""Clients distributed over processes of this machine, beside an engine of this process.

This process trains too. Until the workers are ready it trains alone, so that nobody waits for
them, and short runs start none. Results do not depend on who trains a client.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import cloudpickle
import torch
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Statistic, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import RunError
from flbench.core.imported import portable, where_to_put
from flbench.core.tree import nbytes
from flbench.core.types import Results, Samples
from flbench.data.federation import Federation
from flbench.engine import memory
from flbench.engine.base import Dispatcher, Engine, KeptRows, RoundSettings
from flbench.engine.worker import Warned, Worker, arguments, assign, in_order, unpacked, warn_again
from flbench.models.base import net_leaves
from flbench.workers import cores, frames
from flbench.workers.fork_server import LocalProcess
from flbench.workers.nesting import reason_against_workers

RESTARTS: Final = 3
"""Restarts of a worker before the run fails."""
START_SECONDS: Final = 120.0
"""Seconds that the worker which replaces another one may take until it is ready."""
SPENT: Final = 0.2
"""Seconds of training in this process before workers are started. A run that ends before would gain
nothing by them."""
WORTH: Final = 0.02
"""Seconds of training in a round from which on its clients are distributed. Sending and receiving
take a few milliseconds."""
SENDING: Final = 2e-9
"""Seconds of training for each byte of clients from which on they are distributed. Copying a byte
to a worker takes about half of it."""
WORKER_BYTES: Final = 250 * 2**20
"""Memory of a worker that it shares with no other process, besides net and clients. Measured: 0.2
GiB with LeNet-5."""
COPIES: Final = 8
"""Copies of the leaves of the net that a worker needs for the training of one client."""
STACKED_WORKERS: Final = 3
"""Processes of the vectorized engine with `engine.workers=auto`: a block of each may take a quarter
of the memory, see `engine.vectorized`."""
KNOWN: Final = 8
"""Further programs whose times are kept; programs may hold tensors."""
SENT: Final = 2**29
"""Bytes that are sent to workers and returned by them at once; more clients come in several turns,
so that large models of many clients are never in memory together."""
AT_ONCE: Final = 8
"""Parts of the clients for each process in a turn, at least, so that all have about equal work."""
LARGE_SECONDS: Final = 2.0
"""Seconds of training of one client from which on idle cores are worth a note."""


_Work = tuple[LocalProgram, tuple[Step, ...]]
"""Steps of clients, which decide how long they take."""


def worker_bytes(net: nn.Module) -> int:
    """Return the bytes of memory that a worker needs and shares with no other process.

    Args:
        net: The net of a client.
    """
    return WORKER_BYTES + COPIES * nbytes(net_leaves(net))


def most_processes(config: EngineConfig, net: nn.Module, federation: Federation) -> int:
    """Return how many processes may train clients, with the one that asks.

    With `engine.workers=auto` these are at most as many as there are cores, and as half of the free
    memory allows. Samples are in memory once for all workers, and so are clients on their way.

    Args:
        config: Section `engine`, on a CPU.
        net: The net of a client.
        federation: The samples of all clients.
    """
    if config.workers != "auto":
        return config.workers
    free = memory.free(torch.device("cpu")) // 2 - federation.x.nbytes - SENT
    most = cores.available() // config.threads
    if config.name == "vectorized":
        most = min(most, STACKED_WORKERS)
    return max(1, min(most, 1 + free // worker_bytes(net)))


@dataclass(frozen=True)
class _Call:
    """Arguments of `Engine.run` besides the clients."""

    program: LocalProgram
    rows: KeptRows
    dispatch: Dispatcher
    settings: RoundSettings
    observe: tuple[Step, ...]

    @property
    def work(self) -> _Work:
        """The steps of a client."""
        return self.program, self.observe

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


class _Member:
    """A worker process, what it trains now, and how often it has died.

    Args:
        start: Function that starts a process.
    """

    def __init__(self, start: Callable[[], LocalProcess]) -> None:
        self._start = start
        self.process = start()
        self.deaths = 0
        self.given: tuple[list[object], list[int]] | None = None

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self.process.fileno()

    def is_ready(self) -> bool:
        """Return whether the process is ready; start another one if it died while it started.

        Raises:
            EOFError: Its processes have died too often.
            OSError: The system starts no further process.
            Exception: The process cannot begin.
        """
        try:
            return self.process.check()
        except (EOFError, OSError):
            self.deaths += 1
            self.process.close()
            if self.deaths > RESTARTS:
                raise
            self.process = self._start()
            return False

    def train(self, given: tuple[list[object], list[int]]) -> None:
        """Begin a training."""
        self.given = given
        try:
            self.process.call(given)
        except OSError:
            self._revive()

    def results(self) -> dict[str, Any]:
        """Return the results of the training; wait for them."""
        while True:
            try:
                found: dict[str, Any] = self.process.answer()
                self.given = None
                return found
            except EOFError:
                self._revive()

    def _revive(self) -> None:
        """Start a process in the place of one that has died, with the same training.

        Raises:
            RunError: Its processes have died too often, or do not start.
        """
        while True:
            self.deaths += 1
            self.process.close()
            if self.deaths > RESTARTS:
                raise RunError(
                    f"a worker process died {self.deaths} times, possibly for lack of memory."
                    " Lower engine.workers; 1 trains in one process."
                )
            try:
                self.process = self._start()
                if not self.process.check(START_SECONDS):
                    raise RunError(
                        f"a worker process did not start within {START_SECONDS:g} s. Resume when"
                        " the machine has less to do, or set engine.workers=1."
                    )
                if self.given is not None:
                    self.process.call(self.given)
                return
            except (OSError, EOFError):
                continue


class LocalEngine:
    """Trains clients with an engine of this process and with workers of this machine.

    Results are those of the engine, bit for bit, for any number of workers: clients that are
    stacked together, by the vectorized engine or in the evaluation of small models, go to one
    worker, and all others are trained or evaluated one by one. What only copies tensors is left to
    the engine.

    Args:
        engine: The engine of this process, on a CPU.
        net: The seeded net.
        federation: The samples of all clients.
        config: `workers`, the number of processes that train, with this one; and what the engines
            of the workers need. With `auto`, workers are started when this process has trained for
            `SPENT` seconds, at most as many as there are cores and memory for, and clients of a
            round are distributed if their training takes `WORTH` seconds.
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
        self._engine = engine
        self._net, self._federation, self._config = net, federation, config
        self._tell = tell
        self._members: list[_Member] = []
        self._samples: frames.SharedArray | None = None
        self._spent = 0.0
        self._seconds: list[tuple[_Work, float]] = []  # by unit of work, newest last
        self._read: dict[Samples, Tensor] = {}  # numbers [N] of samples
        self._most: int | None = None
        self._used = 1
        self._has_told_of_cores = self._has_told_of_workers = False
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
        call = _Call(program, rows, dispatch, settings, observe)
        if self._most == 1 or not (program.steps or observe) or not len(ids):
            return call.run(self._engine, ids)
        parts = self._parts(call, ids)
        samples = self._samples_of(call)
        work = [float((samples[part] + 1).sum()) for part in parts]
        expected = self._expected(call, sum(work))
        if program.steps and expected is not None and expected >= LARGE_SECONDS * len(parts):
            self._tell_of_idle_cores(len(parts))
        sent = len(ids) * self._bytes_of(call, ids[:1])
        if len(parts) < 2 or not self._is_worthwhile(expected, sent):
            return self._alone(call, ids, sum(work))
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
        """Start all workers, wait until they are ready, and return the number of processes."""
        self._start(self._count())
        while not all(member.process.is_ready for member in self._members):
            frames.readable([one for one in self._members if not one.process.is_ready])
            self._ready()
        return len(self._members) + 1

    def report(self) -> dict[str, float]:
        """Return measurements of the engine, and `workers`, the number of processes."""
        return {**self._engine.report(), "workers": self._used}

    def close(self) -> None:
        """End the workers, and close the engine."""
        self._end_workers()
        self._engine.close()

    def _parts(self, call: _Call, ids: Tensor) -> list[Tensor]:
        """Return the clients in parts, in their order, of which each one must stay together."""
        size = call.settings.train.batch_size
        stack = self._engine.stacked(call.program, call.observe, size) or len(ids)
        group = call.settings.group
        if group is not None and group % stack:  # a stack ends where its group ends
            stack = group
        return list(torch.split(ids, stack))

    def _samples_of(self, call: _Call) -> Tensor:
        """Return how many samples each client reads, [N]: its training part, or those observed."""
        if call.program.steps:
            return self._federation.sizes
        total = torch.zeros_like(self._federation.sizes)
        for step in call.observe:
            if isinstance(step, Statistic):
                if step.samples not in self._read:
                    self._read[step.samples] = self._federation.counts_of(step.samples)
                total = total + self._read[step.samples]
        return total

    def _expected(self, call: _Call, work: float) -> float | None:
        """Return the seconds that a call takes in this process; None if not known."""
        for known, seconds in self._seconds:
            if known == call.work:
                return seconds * work
        return None

    def _tell_of_idle_cores(self, parts: int) -> None:
        """Note that more threads would use cores which have no client to train, once."""
        threads = cores.available() // parts
        if self._has_told_of_cores or threads < 2 * self._config.threads:
            return
        self._has_told_of_cores = True
        self._tell(
            f"a round has work for {parts} of {cores.available()} cores. engine.threads={threads}"
            " would use the others, and shorten the training of a large net. It changes rounding,"
            " and so the digest."
        )

    def _bytes_of(self, call: _Call, one: Tensor) -> int:
        """Return about how many bytes a worker gets for a client and returns."""
        net = nbytes(net_leaves(self._net))
        size = max(net, nbytes(call.rows(one)))  # what the server sends is about as large
        return size + net if call.program.keeps or call.program.sends else size

    def _is_worthwhile(self, expected: float | None, sent: int) -> bool:
        """Return whether clients are trained one after the other or by workers, not at once.

        Args:
            expected: Seconds that their training takes in this process; None if not known.
            sent: Bytes of the clients that workers would get or return.
        """
        if self._config.workers != "auto" or expected is None:
            return True
        if expected < WORTH + SENDING * sent:
            return False
        return bool(self._members) or self._spent >= SPENT or expected >= SPENT

    def _alone(self, call: _Call, ids: Tensor, work: float) -> Results:
        """Train clients in this process at once, and measure the time."""
        begin = time.perf_counter()
        results = call.run(self._engine, ids)
        self._note_seconds(call, work, time.perf_counter() - begin)
        return results

    def _together(
        self, call: _Call, ids: Tensor, parts: Sequence[Tensor], work: Sequence[float]
    ) -> Results:
        """Train clients in this process until workers are ready, and the others with them."""
        found: list[Results] = []
        left = list(range(len(parts)))
        begin, done = time.perf_counter(), 0.0
        while left:
            if self._is_time_to_start(len(left)):
                self._start(len(left))
            if ready := self._ready():
                break
            part = left.pop(0)
            since = time.perf_counter()
            found.append(call.run(self._engine, parts[part]))
            self._spent += time.perf_counter() - since
            done += work[part]
        if done:
            self._note_seconds(call, done, time.perf_counter() - begin, is_spent=True)
        if left:
            found += self._distributed(
                call, [parts[k] for k in left], [work[k] for k in left], ready
            )
        return in_order(found, ids, call.settings.storage)

    def _distributed(
        self,
        call: _Call,
        parts: Sequence[Tensor],
        work: Sequence[float],
        ready: Sequence[_Member],
    ) -> list[Results]:
        """Train parts of the clients with the workers that are ready, as many at once as `SENT`."""
        size = self._bytes_of(call, parts[0][:1]) * len(parts[0])
        count = max(SENT // max(1, size), AT_ONCE * (len(ready) + 1))
        turns = -(-len(parts) // count)
        bounds = [len(parts) * k // turns for k in range(turns + 1)]
        return [
            results
            for low, high in pairwise(bounds)
            for results in self._in_turn(call, parts[low:high], work[low:high], ready)
        ]

    def _in_turn(
        self,
        call: _Call,
        parts: Sequence[Tensor],
        work: Sequence[float],
        ready: Sequence[_Member],
    ) -> list[Results]:
        """Train parts of the clients, all at once, with the workers that are ready."""
        begin = time.perf_counter()
        assigned = assign(work, len(ready) + 1)
        # This process also sends and receives, and gets the least work.
        assigned.sort(key=lambda positions: sum(work[k] for k in positions))
        mine, others = assigned[0], [positions for positions in assigned[1:] if positions]
        busy = []
        for member, positions in zip(ready, others, strict=False):
            ids = torch.cat([parts[k] for k in positions])
            given = arguments(ids, call.rows(ids), call.dispatch(ids))
            message = ("run", (call.program, *given, call.settings, call.observe))
            member.train(frames.packed(message))
            busy.append(member)
        found = []
        if mine:
            found.append(call.run(self._engine, torch.cat([parts[k] for k in mine])))
            load = sum(work[k] for k in mine)
            self._note_seconds(call, load, time.perf_counter() - begin, is_spent=True)
        warned: list[Warned] = []
        while busy:
            for member in frames.readable(busy):
                busy.remove(member)
                result = member.results()
                warned += result["warned"]
                found.append(unpacked(result))
        warn_again(warned)
        self._used = max(self._used, len(others) + 1)
        return found

    def _note_seconds(
        self, call: _Call, work: float, seconds: float, *, is_spent: bool = False
    ) -> None:
        """Note how long a call took in this process.

        Args:
            call: The call.
            work: Work of the clients.
            seconds: How long it took.
            is_spent: Whether the time is a part of `_spent` already.
        """
        others = [pair for pair in self._seconds if pair[0] != call.work]
        self._seconds = [*others[-KNOWN:], (call.work, seconds / work)]
        if not is_spent:
            self._spent += seconds

    def _is_time_to_start(self, parts: int) -> bool:
        """Return whether workers, or further ones, are to be started now.

        Args:
            parts: Parts of a round that are to be trained.
        """
        if self._most == 1 or len(self._members) + 1 >= min(parts, self._most or parts):
            return False
        return self._config.workers != "auto" or self._spent >= SPENT

    def _start(self, parts: int) -> None:
        """Start the workers that are missing, at most one for each part and for this process."""
        if self._most is None:
            self._most = self._count()
        number = min(self._most, parts)
        if number < 2:
            return
        try:
            if self._samples is None:
                self._samples = frames.SharedArray.of(self._federation.x.numpy())
            rest = self._net, self._federation.without_samples(), self._config
            given = self._samples, portable(rest, cloudpickle.dumps)
            start = partial(LocalProcess, partial(Worker, stacks=True), *given)
            while len(self._members) < number - 1:
                self._members.append(_Member(start))
            if self._config.workers == "auto" and not self._has_told_of_workers:
                self._has_told_of_workers = True
                self._tell(f"engine.workers=auto: up to {self._most} processes train the clients.")
        except Exception as error:  # noqa: BLE001  # the net of a user may refuse to be pickled
            self._stay_alone(f"workers cannot be started ({type(error).__name__}: {error})")

    def _count(self) -> int:
        """Return how many processes may train, with this one."""
        return most_processes(self._config, self._net, self._federation)

    def _ready(self) -> list[_Member]:
        """Return the workers that are ready. Those that could not start are given up."""
        try:
            found = [member for member in self._members if member.is_ready()]
        except (EOFError, OSError):
            self._stay_alone(f"a worker was ended {RESTARTS + 1} times while it started")
            return []
        except Exception as error:  # noqa: BLE001  # code of the user that workers cannot import
            reason = f"{type(error).__name__}: {error}"
            self._stay_alone(f"a worker could not start ({reason})", where_to_put(reason))
            return []
        return found

    def _stay_alone(self, reason: str, cure: str = "") -> None:
        """Train in this process from now on, with a note if the user asked for more.

        Args:
            reason: Why no worker trains, without a full stop.
            cure: Sentence for the user, with a blank before it.
        """
        self._end_workers()
        self._most = 1
        if self._config.workers not in ("auto", 1):
            self._tell(
                f"engine.workers={self._config.workers}: this process trains alone, because"
                f" {reason}.{cure}"
            )

    def _end_workers(self) -> None:
        """End all workers."""
        members, self._members = self._members, []
        for member in members:
            member.process.close()
        samples, self._samples = self._samples, None
        if samples is not None:
            samples.close()
