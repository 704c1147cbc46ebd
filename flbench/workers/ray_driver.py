"""A process of its own that calls Ray, and sends what its functions return.

Ray reads its environment when it is imported, prints on standard output, changes the handlers of
signals, and starts servers below the process that calls it. So another process calls it: with an
environment of its own, and in a session of its own, which Ctrl-C in a terminal does not reach. This
process ends the session after a signal, and the session ends itself if this process is killed.

Everybody who can call the servers of a cluster can execute code as the user who started it.
Therefore a cluster that flbench starts has a random token, listens on the loopback interface alone,
and keeps its files in a folder that only this user can read.
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import cloudpickle
import numpy as np

from flbench.workers import process_pool
from flbench.workers.nesting import is_elsewhere
from flbench.workers.pool import Ended, LostError
from flbench.workers.portable import portable
from flbench.workers.process_pool import SharedArray

PRIVATE: Final = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray uses the loopback interface
    # After `uv run`, Ray would copy the working folder, and start workers by the path of uv.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
"""Environment of a cluster on this machine, with a token. Other users cannot read the environment
of a process, as they can its command line."""
LOSS: Final = "a server of Ray has ended, or cannot be reached."
LONGEST_PLACE: Final = 29
"""Characters of the temporary folder. The names of Ray's sockets below it may have 107 in all."""
PERIOD: Final = 0.5  # seconds between two looks at the servers
TOLERANCE: Final = 10.0
"""Seconds after which a server that does not answer is lost. One that refuses connections has
ended, and is lost at once."""


class RayDriver:
    """A process that is connected to a Ray cluster; a context manager that ends it.

    A cluster of this machine is started for it, unless it has an address, or this process is
    connected to one, which it joins then.

    Args:
        address: Address of a running cluster; see `ray_session.connect`.
        key: The key or option of the address, as error messages write it.
        cpus: Number of CPUs of a cluster that is started; None takes the available cores.

    Raises:
        ConfigError: No cluster answers at the address.
        RunError: Ray does not start on this machine.
    """

    def __init__(
        self, address: str | None, *, key: str = "`engine.address`", cpus: int | None = None
    ) -> None:
        self._servers: list[tuple[str, int]] = []
        self._silent: float | None = None  # time since when a server has not answered
        self._leader: int | None = None
        self._is_closed = False
        self._folder: str | None = None
        ray: Any = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            address = ray.get_runtime_context().gcs_address
        from flbench.workers import ray_session  # it imports Ray

        self._error_of = ray_session.connection_error
        self._process = process_pool.started()
        try:
            environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
            if not is_elsewhere(address):
                self._folder = tempfile.mkdtemp(prefix="fl-", dir=place())
                environment |= {**PRIVATE, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            self._leader = self.call(_begin_session, environment, os.getcwd(), self._folder)
            self._servers = self.call(ray_session.connect, address, key, cpus, self._folder)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call a function in the process; after an interrupt or a loss, the process is ended.

        Args:
            function: The function.
            arguments: Its arguments.
            meanwhile: Function that this process calls while it waits; see `PERIOD`.

        Raises:
            LostError: A server of Ray was lost, or the process has died.
            Exception: The function raised it.
        """
        if self._is_closed:
            raise LostError(LOSS)
        try:
            content = cloudpickle.dumps((function, arguments))
            future = self._process.executor.submit(_called, content)
            while not wait([future], PERIOD).done:
                self._check()
                meanwhile()
            return future.result()
        except BrokenProcessPool:
            self.close()
            raise LostError(LOSS) from None
        except Exception:
            self._check(at_once=True)
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, with a cluster that was started for it."""
        self._is_closed = True
        if self._leader is not None:
            end_session(self._leader)
        self._process.end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _check(self, *, at_once: bool = False) -> None:
        """Raise a LostError if a server is lost; see `TOLERANCE`.

        Args:
            at_once: Whether a server that does not answer is lost.
        """
        errors = [one for one in map(self._error_of, self._servers) if one is not None]
        if not errors:
            self._silent = None
            return
        self._silent = self._silent or time.monotonic()
        has_ended = any(isinstance(one, ConnectionRefusedError) for one in errors)
        if at_once or has_ended or time.monotonic() - self._silent >= TOLERANCE:
            self.close()
            raise LostError(LOSS)


class RayPool:
    """Actors of Ray as workers, which the process of a driver calls; see `pool.Pool`.

    Args:
        driver: The driver.
        tell: Function that gets notes for the user.
        kind: See `flbench.workers.actor_pool.ActorPool`.

    Attributes:
        ready: Number of actors that were ready when calls have ended last.
    """

    def __init__(
        self,
        driver: RayDriver,
        tell: Callable[[str], None],
        kind: type,
        given: Sequence[Any],
        most: int,
        *rest: Any,
    ) -> None:
        from flbench.workers import actor_pool  # it imports Ray

        self._tell, self.most, self.ready = tell, most, 0
        sent = [_with_modules(one) for one in given]
        number = driver.call(actor_pool.open_actors, kind, sent, most, *rest)
        self._call = partial(driver.call, actor_pool.call, number)

    def put(self, thing: Any) -> Any:
        """Store an object; return what stands for it among the arguments of a call."""
        return self._call("put", _with_modules(thing))

    def give_up(self, stored: Any) -> None:
        """Give up a stored object, which no further call gets."""
        self._call("give_up", stored)

    def submit(self, key: Any, method: str, *arguments: Any) -> None:
        self._call("submit", key, method, *arguments)

    def ended(self, seconds: float) -> list[Ended]:
        found, note, self.ready = self._call("ended", seconds)
        if note is not None:
            self._tell(note)
        return list(found)

    def close(self) -> None:
        self._call("close")


def device_there(device: str, address: str | None, key: str = "`engine.address`") -> str:
    """Return the device of trainings on the nodes of a cluster, which this process need not have.

    Ray assigns GPUs to worker processes. Each sees its own as the first, and checks that it exists.

    Args:
        device: `engine.device`; `auto` is a GPU if a node has one.
        address: Address of the cluster; it is not used if this process is connected to one.
        key: The key or option of the address, as error messages write it.

    Raises:
        ConfigError: No cluster answers at the address.
    """
    from flbench.workers.actor_pool import there

    if device != "auto":
        return device.partition(":")[0]
    with RayDriver(address, key=key) as driver:
        return "cuda" if driver.call(there, ["GPU"])["GPU"] else "cpu"


def _with_modules(thing: Any) -> Any:
    """Return an object that finds its modules where it arrives; an array needs none."""
    is_array = isinstance(thing, SharedArray | np.ndarray)
    return thing if is_array else portable(thing, cloudpickle.dumps)


def _called(content: bytes) -> Any:
    """Call a function, in the process of a driver."""
    function, arguments = cloudpickle.loads(content)
    return function(*arguments)


def _begin_session(environment: dict[str, str], here: str, folder: str | None) -> int:
    """Begin the session of the process that calls Ray; return its id.

    Args:
        environment: Its environment.
        here: The folder in which it works.
        folder: The folder of its private cluster, which is deleted if its owner is killed.
    """
    os.setsid()
    os.chdir(here)
    os.environ.clear()
    os.environ.update(environment)

    def end_all() -> None:
        end_session(os.getpid())
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    process_pool.at_end.append(end_all)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Ray prints there what its servers say
    return os.getpid()


def end_session(leader: int) -> None:
    """End all processes of a session but this one.

    Args:
        leader: Id of the process that began the session.
    """
    while found := [one for one in _session(leader) if one != os.getpid()]:
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.02)


def _session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def place() -> str:
    """Return the folder for temporary folders, whose name must be short."""
    found = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return found if len(os.fsencode(os.path.abspath(found))) <= LONGEST_PLACE else "/tmp"
