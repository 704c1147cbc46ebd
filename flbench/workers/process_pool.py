"""Worker processes of this machine, by `concurrent.futures` on Python's fork server.

Workers do not import the script of the user, and end with this process, however it ends.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any, Final

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import RunError
from flbench.core.parts import portable, where_to_put
from flbench.workers import fork_server
from flbench.workers.pool import DIED, RESTARTS, Ended

FILES: Final = 9
"""Files that a worker opens in this process."""


class CouldNotBeginError(RunError):
    """A worker could not make its object, and neither could another worker."""


class SharedArray:
    """An array in a file in memory, which a worker to whom it is sent maps.

    What a worker writes to its array is not seen by others. The file ends with the last process
    that uses it.

    Args:
        array: The array, which is copied.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._file = os.fdopen(os.memfd_create("flbench"), "wb")
        np.save(self._file, array)
        self._file.flush()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return np.load, (f"/proc/{os.getpid()}/fd/{self._file.fileno()}", "c")

    def close(self) -> None:
        """Give the file back; arrays that workers have stay."""
        self._file.close()


class ProcessPool:
    """Processes of this machine as workers; see `flbench.workers.pool.Pool`.

    Args:
        make: Function or class that makes the object of a worker.
        given: Its arguments.
        most: Largest number of processes.

    Raises:
        Exception: The arguments cannot be pickled.
    """

    def __init__(self, make: Callable[..., Any], *given: Any, most: int = 0) -> None:
        self.failed: str | None = None
        self.most, self._deaths = most, 0
        self._content = cloudpickle.dumps(portable((make, given), cloudpickle.dumps))
        self._processes: list[_Process] = []
        self._running: dict[Future[Any], tuple[_Process, Any]] = {}

    @property
    def ready(self) -> int:
        return sum(one.is_ready() for one in self._processes)

    def fill(self) -> None:
        fork_server.start()
        for process in [one for one in self._processes if one.begun.done()]:
            error = process.begun.exception()
            if error is not None:
                self._end(process)
                self._deaths += 1
                if not isinstance(error, BrokenProcessPool):
                    self.failed = f"a worker {error}"
                elif self._deaths > RESTARTS:
                    self.failed = f"a worker was ended {self._deaths} times while it started"
        while fork_server.is_ready() and len(self._processes) < self.most and self.failed is None:
            self._add()

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        busy = [process for process, _ in self._running.values()]
        idle = [process for process in self._processes if process not in busy]
        process = idle[0] if idle else self._add()
        try:
            self._running[process.call(method, arguments)] = process, key
        except BrokenProcessPool:  # it has died since its last call
            self._end(process)
            self.submit(key, method, *arguments)

    def ended(self, seconds: float) -> list[Ended]:
        found = []
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            process, key = self._running.pop(future)
            try:
                found.append(Ended(key, future.result()))
            except BrokenProcessPool:
                self._end(process)
                found.append(Ended(key, lost=DIED))
            except CouldNotBeginError as error:
                self._end(process)
                found.append(Ended(key, lost=f"its process {error}", is_final=True))
        return found

    def close(self) -> None:
        for process in self._processes:
            process.let_go()  # all end at the same time
        for process in list(self._processes):
            self._end(process)
        self._running.clear()

    def _add(self) -> "_Process":
        """Start a process.

        Raises:
            RunError: The system starts no further process.
        """
        fork_server.start()
        try:
            process = _Process(self._content)
        except OSError as error:
            raise RunError(
                f"the system starts no further process ({error}). Train fewer at the same time, or"
                " end other processes."
            ) from error
        self._processes.append(process)
        return process

    def _end(self, process: "_Process") -> None:
        if process in self._processes:
            self._processes.remove(process)
            process.end()


class _Process:
    """One process, which is lost without the others.

    Args:
        content: The pickled function that makes its object, with its arguments.
    """

    def __init__(self, content: bytes) -> None:
        end, self._alive = fork_server.context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            1, fork_server.context, _begin, (end, os.getcwd(), content)
        )
        try:
            self.begun = self.call("ready", ())
        except BaseException:
            self.end()
            raise
        finally:
            end.close()

    def is_ready(self) -> bool:
        """Return whether the process has made its object."""
        return self.begun.done() and self.begun.exception() is None

    def call(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Call a method of its object."""
        content = cloudpickle.dumps((method, arguments))
        with _without_main():
            return self._executor.submit(_call, content)

    def let_go(self) -> None:
        """Tell the process to end, also in the middle of a call."""
        self._alive.close()

    def end(self) -> None:
        """End the process, and wait for its end."""
        self.let_go()
        self._executor.shutdown(cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Context manager in which new processes do not import the script of the user.

    A script then needs no guard (`if __name__ == "__main__"`).
    """
    main = sys.modules["__main__"]
    file, spec = vars(main).pop("__file__", None), main.__spec__
    main.__spec__ = None
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file


at_end: Final[list[Callable[[], object]]] = []
"""In a worker: what is called before it ends because its owner has ended."""
_given = b""  # in a worker: the pickled function that makes its object, with its arguments
_object: Any = None  # in a worker


def _begin(end: Any, folder: str, content: bytes) -> None:
    """Begin a worker, which ends when its owner closes the other end of a pipe, or ends."""
    global _given

    def follow() -> None:
        connection.wait([end])
        for function in at_end:
            function()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    with suppress(OSError):
        os.chdir(folder)
    _given = content


def _call(content: bytes) -> Any:
    """Call a method of the object of a worker, which its first call makes."""
    global _object
    if _object is None:
        try:
            make, given = cloudpickle.loads(_given)
            _object = make(*given)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CouldNotBeginError(
                f"could not begin ({reason}).{where_to_put(reason)}"
            ) from error
    method, arguments = cloudpickle.loads(content)
    return getattr(_object, method)(*arguments)
