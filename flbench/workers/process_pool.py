"""Worker processes of this machine, by `concurrent.futures` on Python's fork server.

Workers do not import the script of the user, and end with this process, however it ends.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, Final

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from flbench.core.parts import portable
from flbench.workers import fork_server
from flbench.workers.pool import CouldNotBeginError, Ended

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

    def __init__(self, make: Callable[..., Any], *given: Any, most: int) -> None:
        self.most = most
        self._content = cloudpickle.dumps(portable((make, given), cloudpickle.dumps))
        self._idle: list[_Process] = []
        self._running: dict[Future[Any], tuple[_Process, Any]] = {}

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        content = cloudpickle.dumps((method, arguments))
        while True:
            process = self._idle.pop() if self._idle else _Process(self._content)
            try:
                self._running[process.call(content)] = process, key
                return
            except BrokenProcessPool:  # it has died since its last call
                process.end()

    def ended(self, seconds: float) -> list[Ended]:
        found = []
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            process, key = self._running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                process.end()
                found.append(Ended(key, lost="its process died: it was killed, or memory ran out."))
            else:
                self._idle.append(process)
                found.append(Ended(key, future.result()))
        return found

    def close(self) -> None:
        processes = [*self._idle, *(process for process, _ in self._running.values())]
        self._idle.clear()
        self._running.clear()
        for process in processes:
            process.let_go()  # all end at the same time
        for process in processes:
            process.end()


class _Process:
    """One process, which is lost without the others.

    Args:
        content: The pickled function that makes its object, with its arguments.

    Raises:
        CouldNotBeginError: The system starts no further process.
    """

    def __init__(self, content: bytes) -> None:
        end, self._alive = fork_server.context.Pipe(duplex=False)
        fork_server.start()
        try:
            begin = end, content
            self._executor = ProcessPoolExecutor(1, fork_server.context, _begin, begin)
            with _without_main():
                self._executor.submit(os.getpid)  # starts the process
        except OSError as error:
            raise CouldNotBeginError(
                f"the system starts no further process ({error}). Train fewer at the same time, or"
                " end other processes."
            ) from error
        finally:
            end.close()

    def call(self, content: bytes) -> Future[Any]:
        """Call a method of its object."""
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


def _begin(end: Any, content: bytes) -> None:
    """Begin a worker, which ends when its owner closes the other end of a pipe, or ends."""
    global _given

    def follow() -> None:
        connection.wait([end])
        for function in at_end:
            function()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _given = content


def _call(content: bytes) -> Any:
    """Call a method of the object of a worker, which its first call makes."""
    global _object
    if _object is None:
        try:
            make, given = cloudpickle.loads(_given)
            _object = make(*given)
        except Exception as error:
            raise CouldNotBeginError(
                f"a worker process could not begin ({type(error).__name__}: {error})."
            ) from error
    method, arguments = cloudpickle.loads(content)
    return getattr(_object, method)(*arguments)
