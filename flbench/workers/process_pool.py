"""Worker processes of this machine, by `concurrent.futures` on Python's fork server.

Workers do not import the script of the user, and end with this process, however it ends.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import count
from multiprocessing import connection
from types import ModuleType
from typing import Any, Final, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from flbench.workers import fork_server
from flbench.workers.pool import CouldNotBeginError, Ended
from flbench.workers.portable import portable

FILES: Final = 9
"""Files that a worker opens in this process."""


class SharedArray:
    """An array in a file in memory, which a worker to whom it is sent maps.

    What a worker writes to its array is not seen by others. The file ends with the last process
    that uses it.

    Args:
        array: The array, which is copied.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._file = os.memfd_create("flbench")
        self.close = weakref.finalize(self, os.close, self._file)  # arrays of workers stay
        with open(self._file, "wb", closefd=False) as file:
            np.save(file, array)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return np.load, (f"/proc/{os.getpid()}/fd/{self._file}", "c")


def gpus_in_turn(count: int) -> list[dict[str, str]]:
    """Return the environment variables by which a process sees one GPU, for each GPU.

    Args:
        count: Number of GPUs that this process sees; without any, there are no variables.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = named if any(named) else list(map(str, range(count)))
    return [{"CUDA_VISIBLE_DEVICES": one.strip()} for one in names[:count]] or [{}]


class WorkerProcess(NamedTuple):
    """One process, which is lost without the others; it ends when `alive` is closed.

    Attributes:
        executor: Calls functions in the process.
        alive: The pipe by which the process sees that its owner has ended.
        number: Number of the process in its pool, from 0, which no other one has at the time.
    """

    executor: ProcessPoolExecutor
    alive: connection.Connection
    number: int = 0

    def end(self) -> None:
        """End the process, also in the middle of a call, and wait for its end."""
        self.alive.close()
        self.executor.shutdown(cancel_futures=True)


class ProcessPool:
    """Processes of this machine as workers; see `flbench.workers.pool.Pool`.

    Args:
        make: Function or class that makes the object of a worker.
        given: Its arguments, which stay in memory as long as the pool.
        most: Largest number of processes.
        variables: Environment variables that differ between the processes: process i gets those of
            the position i modulo the length.

    Raises:
        Exception: The arguments cannot be pickled.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *given: Any,
        most: int,
        variables: Sequence[Mapping[str, str]] = ({},),
    ) -> None:
        self.most, self._given, self._variables = most, given, variables
        self._content = cloudpickle.dumps(portable((make, given), cloudpickle.dumps))
        self._idle: list[WorkerProcess] = []
        self._running: dict[Future[Any], tuple[WorkerProcess, Any]] = {}

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        content = cloudpickle.dumps((method, arguments))
        while True:
            process = self._idle.pop() if self._idle else self._started()
            try:
                self._running[process.executor.submit(_call, content)] = process, key
                return
            except BrokenProcessPool:  # it has died since its last call
                process.end()

    def _started(self) -> WorkerProcess:
        """Start a process with the smallest number that is free, such as that of a lost one."""
        taken = {process.number for process, _ in self._running.values()}
        number = next(one for one in count() if one not in taken)
        variables = self._variables[number % len(self._variables)]
        return started(self._content, variables)._replace(number=number)

    def ended(self, seconds: float) -> list[Ended]:
        """See `Pool.ended`. What a call has returned comes before an error of another one."""
        done = [*wait(self._running, seconds, FIRST_COMPLETED).done]
        returned = [future for future in done if future.exception() is None]
        return [self._ended(future) for future in returned or done[:1]]

    def _ended(self, future: Future[Any]) -> Ended:
        """Return how a call has ended; raise its error."""
        process, key = self._running.pop(future)
        if isinstance(future.exception(), BrokenProcessPool):
            process.end()
            return Ended(key, lost="its process died: it was killed, or memory ran out.")
        self._idle.append(process)
        return Ended(key, future.result())

    def close(self) -> None:
        processes = [*self._idle, *(process for process, _ in self._running.values())]
        self._idle.clear()
        self._running.clear()
        for process in processes:
            process.alive.close()  # all end at the same time
        for process in processes:
            process.end()


def started(content: bytes = b"", variables: Mapping[str, str] | None = None) -> WorkerProcess:
    """Start a process, which does not import the script of the user.

    A script then needs no guard (`if __name__ == "__main__"`).

    Args:
        content: The pickled function that makes its object, with its arguments.
        variables: Environment variables of the process alone.

    Raises:
        CouldNotBeginError: The system starts no further process.
    """
    end, alive = fork_server.context.Pipe(duplex=False)
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        fork_server.start()
        executor = ProcessPoolExecutor(
            1, fork_server.context, _begin, (end, content, {**(variables or {})})
        )
        executor.submit(os.getpid)  # starts the process
    except OSError as error:
        raise CouldNotBeginError(
            f"the system starts no further process ({error}). Train fewer at the same time, end"
            " other processes, or see that /dev/shm is writable and the path of TMPDIR is short."
        ) from error
    finally:
        sys.modules["__main__"] = main
        end.close()
    return WorkerProcess(executor, alive)


at_end: Final[list[Callable[[], object]]] = []
"""In a worker: what is called before it ends because its owner has ended."""
_content = b""  # in a worker: the pickled function that makes its object, with its arguments


def _begin(end: connection.Connection, content: bytes, variables: dict[str, str]) -> None:
    """Begin a worker, which ends when its owner closes the other end of a pipe, or ends."""
    global _content
    os.environ.update(variables)

    def follow() -> None:
        connection.wait([end])
        for function in at_end:
            function()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _content = content


@cache
def _object() -> Any:
    """Make the object of a worker, which its first call does."""
    try:
        make, given = cloudpickle.loads(_content)
        return make(*given)
    except Exception as error:
        raise CouldNotBeginError(
            f"a worker process could not begin ({type(error).__name__}: {error})."
        ) from error


def _call(content: bytes) -> Any:
    """Call a method of the object of a worker."""
    worker = _object()  # it may import what the arguments need
    method, arguments = cloudpickle.loads(content)
    return getattr(worker, method)(*arguments)
