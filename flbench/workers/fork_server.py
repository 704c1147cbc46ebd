"""Worker processes of this machine, which start in a few milliseconds.

A server process imports PyTorch and flbench, and forks itself for each worker. No process is forked
in which threads have run: the server has one thread, and computes nothing. Python's own fork
server is not used because its processes import the script of the user, which then needs a guard
(`if __name__ == "__main__"`), and because it belongs to the whole process of the user.

No worker outlives the process that asked for it. The server ends when that process ends, however it
does, and the system kills the workers when the server ends.
"""

import atexit
import ctypes
import fcntl
import gc
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from flbench.core import children, pytorch
from flbench.core.errors import PrintableError
from flbench.core.garbage import uncollected
from flbench.workers import cores
from flbench.workers.frames import Connection, packed, readable
from flbench.workers.nesting import VARIABLE, reason_against_workers

PRELOADED: Final = (
    *("flbench.engine.worker", "flbench.engine.sequential", "flbench.algorithms"),
    "flbench.jobs.training",
)
"""Modules that the server imports."""
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Environment of the server, in which libraries start no threads when they are imported."""
PATIENCE: Final = 0.5  # seconds between two looks of the server at its parent
_ORDER: Final = struct.Struct("<cI")  # `+` or `-`, and the number of a worker
_DEATH_SIGNAL: Final = 1  # number of the option in Linux' `prctl`
_PROGRAM: Final = (
    "import sys; sys.path.append({root!r}); from flbench.workers.fork_server import serve;"
    " serve({descriptor}, {parent})"
)


class ForkServer:
    """A process that forks workers for this one.

    Raises:
        OSError: The system starts no further process.
    """

    def __init__(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end, self._end = os.pipe()
        self._numbers, self._owner = count(), os.getpid()
        root = str(Path(__file__).resolve().parents[2])
        program = _PROGRAM.format(root=root, descriptor=there.fileno(), parent=os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=children.environment(**ONE_THREAD, **{VARIABLE: "1"}),
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno(), end],
                process_group=0,  # Ctrl-C is for the process of the user alone
            )
            with suppress(OSError):  # the server looks for its parent too
                _kill_at_end(self._process.pid, end)
        except OSError:
            here.close()
            os.close(self._end)
            raise
        finally:
            there.close()
            os.close(end)
        self._socket = here

    def fork(self) -> tuple[int, Connection]:
        """Start a worker; return its number and the connection to it. It need not be ready yet.

        Raises:
            OSError: The server has ended.
        """
        number = next(self._numbers)
        here, there = socket.socketpair()
        try:
            socket.send_fds(self._socket, [_ORDER.pack(b"+", number)], [there.fileno()])
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        return number, Connection(here)

    def kill(self, number: int) -> None:
        """End the worker with this number, if it runs."""
        with suppress(OSError):
            self._socket.send(_ORDER.pack(b"-", number))

    def is_alive(self) -> bool:
        """Return whether the server runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the server and all its workers, unless this process is a fork of their owner."""
        if os.getpid() != self._owner:
            return
        self._socket.close()
        os.close(self._end)
        self._process.kill()
        self._process.wait()


class _Shared:
    """The server of this process, which all users of it share.

    Attributes:
        server: The server; None if there is none.
        users: Number of its users. The last one ends it.
    """

    server: ForkServer | None = None
    users = 0
    lock = threading.RLock()


@contextmanager
def started() -> Iterator[None]:
    """Context manager that starts the server at once, and ends it with the last of its users.

    The server imports PyTorch while this process imports its own libraries and reads its data.
    Nothing happens if this process has one core, or may start no workers.
    """
    _use()
    if cores.available() > 1 and reason_against_workers() is None:
        with suppress(OSError):
            _current()
    try:
        yield
    finally:
        _leave()


def _current() -> ForkServer:
    """Return the server of this process; start one if there is none.

    Raises:
        OSError: The system starts no further process.
    """
    with _Shared.lock:
        if _Shared.server is not None and not _Shared.server.is_alive():
            _Shared.server.close()
            _Shared.server = None
        if _Shared.server is None:
            _Shared.server = ForkServer()
        return _Shared.server


def _use() -> None:
    with _Shared.lock:
        _Shared.users += 1


def _leave() -> None:
    with _Shared.lock:
        _Shared.users -= 1
        if not _Shared.users:
            _end()


@atexit.register
def _end() -> None:
    """End the server of this process."""
    server, _Shared.server = _Shared.server, None
    if server is not None:
        server.close()


class LocalProcess:
    """A worker process with one object, whose methods are called.

    Args:
        make: Function or class that makes the object in the worker.
        given: Its arguments.

    Attributes:
        is_ready: Whether the object has been made.

    Raises:
        OSError: The system starts no further process.
    """

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        _use()
        try:
            with _Shared.lock:
                self._server = _current()
                self._number, self._connection = self._server.fork()
            self._connection.send((make, given))
        except BaseException:
            _leave()
            raise
        self.is_ready = False
        self._is_open = True

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is an answer, for `readable`."""
        return self._connection.fileno()

    def check(self, seconds: float | None = 0) -> bool:
        """Return whether the object has been made; wait for it at most some seconds.

        Args:
            seconds: The limit; None for none.

        Raises:
            EOFError: The process has ended.
            Exception: The object could not be made.
        """
        if not self.is_ready and readable([self], seconds):
            self.answer()
            self.is_ready = True
        return self.is_ready

    def call(self, parts: tuple[list[Any], list[int]]) -> None:
        """Call a method of the object. The process must not be busy with another call.

        Args:
            parts: What `frames.packed` returns for a pair: the name of the method and a tuple of
                its arguments.

        Raises:
            OSError: The process has ended, or there is no memory for the arguments.
        """
        self._connection.send_parts(*parts)

    def answer(self) -> Any:
        """Return what the method returned; wait for it.

        Raises:
            EOFError: The process has ended.
            Exception: The method raised it. The worker's traceback is a note of the exception.
        """
        has_failed, answer = self._connection.receive()
        if has_failed:
            raise answer
        return answer

    def close(self) -> None:
        """End the process, also in the middle of a call."""
        if self._is_open:
            self._is_open = False
            self._connection.close()
            self._server.kill(self._number)
            _leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(descriptor: int, parent: int) -> None:
    """Fork workers until the process that has started this one ends. This function does not return.

    Args:
        descriptor: Descriptor of the socket with the orders.
        parent: Id of that process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The system ends this process when the parent's end of the pipe is closed. A fork of the parent
    # may keep it open.
    signal.signal(signal.SIGALRM, lambda *_: _end_without(parent))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)  # while modules are imported
    _end_without(parent)
    orders = socket.socket(fileno=descriptor)
    with uncollected():
        pytorch.load()
        for name in PRELOADED:
            import_module(name)
    # Workers do not copy the memory of frozen objects. No search for garbage comes first, because
    # imports leave little.
    gc.freeze()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    workers: dict[int, int] = {}  # ids of processes by number
    while True:
        _end_without(parent)
        is_asked = readable([orders], PATIENCE)
        for number, process in list(workers.items()):
            # The id of a process that was not waited for is given to no other one.
            if os.waitpid(process, os.WNOHANG)[0]:
                del workers[number]
        if not is_asked:
            continue
        order, files, _, _ = socket.recv_fds(orders, _ORDER.size, 1)
        if not order:
            os._exit(0)
        kind, number = _ORDER.unpack(order)
        if kind == b"+":
            with suppress(OSError):  # the other end of the socket sees that there is no worker
                workers[number] = _fork(orders, files[0])
            os.close(files[0])
        elif number in workers:
            os.kill(workers[number], signal.SIGKILL)


def _kill_at_end(process: int, end: int) -> None:
    """Let the system kill a process when the other end of a pipe is closed, whatever it does.

    A signal at the death of the parent (`PR_SET_PDEATHSIG`) would come at the end of the thread
    that has started the process. A handler in Python would wait until the import of a library ends.

    Args:
        process: Id of the process, which has the pipe open.
        end: Descriptor of the end of the pipe that can be read; nothing is written to it.

    Raises:
        OSError: The system cannot do so.
    """
    fcntl.fcntl(end, fcntl.F_SETOWN, process)
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)


def _end_without(parent: int) -> None:
    """End this process if the one that has started it has ended."""
    if os.getppid() != parent:
        os._exit(0)


def _fork(orders: socket.socket, descriptor: int) -> int:
    """Fork this process; return the id of the new one, which becomes a worker.

    Args:
        orders: Socket that belongs to this process alone.
        descriptor: Descriptor of the worker's socket.

    Raises:
        OSError: The system starts no further process.
    """
    server = os.getpid()
    if process := os.fork():
        return process
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        _end_without(server)
        orders.close()
        _work(Connection(socket.socket(fileno=descriptor)))
    finally:
        os._exit(0)


def _work(connection: Connection) -> None:
    """Make an object, and call its methods as the other end asks for it, until that end closes."""
    thing: Any = None

    # Reading a message is a part of each: its content may need modules that are not found here.
    def begin() -> None:
        nonlocal thing
        make, given = connection.receive()
        thing = make(*given)

    def call() -> Any:
        name, given = connection.receive()
        return getattr(thing, name)(*given)

    with suppress(OSError):  # the other end has closed: an answer cannot be sent
        _answer(connection, begin)
        while True:
            _answer(connection, call)


def _answer(connection: Connection, call: Callable[[], Any]) -> None:
    """Call a function, and send what it returns or raises."""
    try:
        answer = packed((False, call()))
    except Exception as error:  # noqa: BLE001  # the other end raises it
        answer = _packed_error(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    connection.send_parts(*answer)


def _packed_error(error: Exception) -> tuple[list[Any], list[int]]:
    """Return an exception as a message; one that cannot be pickled becomes a RuntimeError."""
    if not isinstance(error, PrintableError):
        error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        found = packed((True, error))
        pickle.loads(found[0][0], buffers=found[0][1:])
        return found
    except Exception:  # noqa: BLE001
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = getattr(error, "__notes__", [])
        return packed((True, other))
