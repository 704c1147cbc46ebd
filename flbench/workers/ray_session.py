"""Connections to Ray: a private cluster on this machine, or a cluster that runs already.

Everybody who can call the servers of a cluster can execute code as the user who started it.
Therefore a cluster that flbench starts has a random token, listens on the loopback interface alone,
and keeps its files in a folder that only this user can read. A cluster of another user is refused.
"""

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray._private import worker
from ray.job_config import JobConfig

from flbench.core import hosts
from flbench.core.errors import ConfigError, RunError
from flbench.core.parts import is_searched_early
from flbench.workers import cores, ray_reaper

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
_ONE_MACHINE: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # false: Ray uses the loopback interface
CLIENT_PORT: Final = "10001"
"""Port of an address `ray://HOST` without one."""
_PORT: Final = re.compile("[0-9]{1,5}")
_PREFIX: Final = "fl-"
_LONGEST_PLACE: Final = 29
"""Characters of the temporary folder. The names of Ray's sockets below it may have 107 in all."""


def connect(
    address: str | None,
    *,
    key: str = "`engine.address`",
    cpus: int | None = None,
    gpus: int | None = None,
) -> bool:
    """Join or start a Ray cluster, unless this process is already connected to one.

    Args:
        address: Address of a running cluster, `HOST:PORT` or `ray://HOST:PORT`; `auto` to find one
            of this user; None or `local` to start one on this machine.
        key: The key or option of the address, as error messages write it.
        cpus: Number of CPUs of a cluster that is started; None takes the available cores.
        gpus: Number of GPUs that a cluster that is started declares, whether the machine has them
            or not; None takes those that Ray finds.

    Returns:
        Whether this call joined or started the cluster, which `disconnect` ends then; False if the
        process was connected already.

    Raises:
        ConfigError: No cluster answers at the address, or another user has started it.
        RunError: Ray does not start on this machine.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    _Messages.drop()
    try:
        if address in (None, "local"):
            if gpus is not None:
                options["num_gpus"] = gpus
            _start(options, cores.available() if cpus is None else cpus)
        else:
            _join(options, address, key)
    except BaseException:
        _Messages.show()
        raise
    return True


def disconnect() -> None:
    """End the connection, and the cluster if `connect` has started it, with its files."""
    ray.shutdown()
    _Messages.show()
    if _Private.current is not None:
        _Private.current.close()


def _start(options: dict[str, Any], cpus: int) -> None:
    """Start a cluster on this machine."""
    private = _Private()
    try:
        with _for_this_machine():
            ray.init(
                # `local`: without it Ray would join a cluster that an environment variable names.
                address="local",
                include_dashboard=False,
                num_cpus=cpus,
                job_config=_Job(),
                # Workers begin in the current folder, from which PyTorch would take a library.
                runtime_env={"worker_process_setup_hook": "flbench.core.startup.load_pytorch"},
                # Ray lets everybody write to this folder, but nobody can reach it.
                _temp_dir=str(private.folder / "r"),
                **options,
            )
    except Exception as error:  # Ray raises the base class if a server does not start in time
        private.close()
        raise RunError(
            f"Ray did not start on this machine: {error} It waits half a minute for its"
            " servers: free memory, end programs that keep all cores busy, and try again."
        ) from error
    except BaseException:  # Ctrl-C
        private.close()
        raise


def _join(options: dict[str, Any], address: str, key: str) -> None:
    """Join a cluster that runs already."""
    found = _find(key) if address == "auto" else address
    _check(found, key)
    if "://" not in found:
        options["job_config"] = _Job()
    try:
        ray.init(address=found, **options)
    except Exception as error:
        raise ConfigError(
            f"{key}: no Ray cluster answers at {found} ({error}). Start one with"
            " `ray start --head`, or leave the address out."
        ) from error


class _Messages:
    """Messages of Ray's servers, which Ray prints on standard output, between tables and JSON.

    They describe Ray's internals. What is lost is an error of the calls that wait for it.
    `log_to_driver` of `ray.init` concerns the output of workers alone, and no public option stops
    the thread that prints these messages; so its function of Ray's private module is replaced.
    """

    _printer: Any = None  # Ray's own function, while messages are dropped

    @classmethod
    def drop(cls) -> None:
        """Print none of them."""
        if cls._printer is None:
            cls._printer = worker.print_to_stdstream
            worker.print_to_stdstream = lambda *_, **__: None

    @classmethod
    def show(cls) -> None:
        """Print them again, for the user's own use of Ray in this process."""
        if cls._printer is not None:
            worker.print_to_stdstream, cls._printer = cls._printer, None


class _Private:
    """What a cluster on this machine has for itself: a token, and a folder of this user.

    The environment has the token until `close`. Other users cannot read the environment of a
    process, as they can its command line.

    Attributes:
        folder: The folder.
    """

    current: "_Private | None" = None

    def __init__(self) -> None:
        if _Private.current is not None:  # the user's own code has ended Ray
            _Private.current.close()
        _Private.current = self
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            _ONE_MACHINE: "0",
        }
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        _read_environment()
        self._reaper: int | None = None
        self._start_reaper()

    def _start_reaper(self) -> None:
        """Start the process that ends what is left of the cluster if this process is killed."""
        end, self._lifeline = os.pipe()  # it reads nothing before this process ends
        nothing = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        try:
            self._reaper = os.posix_spawn(
                sys.executable,
                # -I: nothing of the current folder or of $PYTHONPATH is imported.
                [sys.executable, "-I", "-S", ray_reaper.__file__, str(self.folder.resolve())],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, end, 0), nothing, (os.POSIX_SPAWN_DUP2, 2, 1)],
                setpgroup=0,  # Ctrl-C is not for it
            )
        except OSError:  # the system starts no further process
            self._reaper = None
        finally:
            os.close(end)

    def close(self) -> None:
        """Restore the environment, and delete the folder."""
        if self._reaper is not None:
            with suppress(OSError):  # the user's code has waited for all processes
                os.kill(self._reaper, signal.SIGKILL)
                os.waitpid(self._reaper, 0)
        os.close(self._lifeline)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_environment()
        shutil.rmtree(self.folder, ignore_errors=True)
        _Private.current = None


def _read_environment() -> None:
    """Let Ray read its environment variables again, which it does when it is imported."""
    from ray import _raylet

    library: Any = _raylet  # compiled, without types
    library.Config.initialize("")
    library.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _for_this_machine() -> Iterator[None]:
    """Let Ray start servers for this machine alone in the context.

    They use the loopback interface. Workers are started by this Python: after `uv run`, Ray would
    copy the working folder to an archive and start each worker by the path of uv, which fails for
    a relative path, a folder above 500 MB and a subfolder of the project.
    """
    from ray._private import ray_constants

    names = ("ENABLE_RAY_CLUSTER", "RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    before = {name: getattr(ray_constants, name) for name in names}
    for name in names:
        setattr(ray_constants, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(ray_constants, name, value)


def _place() -> str:
    """Return the folder for temporary folders, whose name must be short."""
    place = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    is_short = len(os.fsencode(os.path.abspath(place))) <= _LONGEST_PLACE
    return place if is_short or not os.access("/tmp", os.W_OK) else "/tmp"


class _Job(JobConfig):  # type: ignore[misc]
    """The job of this process, whose workers do not import from the current folder first.

    Ray would search it before Python's own modules. A worker appends it to `sys.path` when it needs
    a module of the user; see `flbench.core.parts.portable`.
    """

    def _serialize(self) -> Any:
        self._py_driver_sys_path: list[str] = [
            folder for folder in self._py_driver_sys_path if is_searched_early(folder)
        ]
        return super()._serialize()


def _find(key: str) -> str:
    """Return the address of the cluster of this user that runs on this machine.

    Clusters that flbench has started for one process have a token that other processes lack.

    Raises:
        ConfigError: There is none.
    """
    from ray._common.utils import get_ray_address_file
    from ray._private.services import find_gcs_addresses

    if (given := os.environ.get(ADDRESS_VARIABLE)) and given != "auto":
        return given
    candidates = []
    file = Path(get_ray_address_file(None))
    if file.is_file() and file.stat().st_uid == os.getuid():
        candidates.append(file.read_text("utf-8").strip())
    others = set()
    for candidate in (*candidates, *sorted(find_gcs_addresses())):
        owners = _owners(candidate)
        is_mine = owners == {os.getuid()} and _refusal(candidate) is None
        if is_mine or (not owners and candidate in candidates):
            return str(candidate)
        others |= owners - {os.getuid()}
    whose = f" There is one of {_names(others)}, which is not used." if others else ""
    raise ConfigError(
        f"{key}: no Ray cluster of this user runs on this machine.{whose} Start one with"
        " `ray start --head`, or leave the address out."
    )


def _check(address: str, key: str) -> None:
    """Check that a cluster answers at an address, and that no other user has started it.

    Ray itself would wait for minutes if nothing listens.

    Raises:
        ConfigError: It is no address, nothing listens at HOST:PORT, or it is a port of this machine
            at which a process of another user listens.
    """
    host, port = _host_and_port(address)
    # Ray imports the module that another scheme names, and reads ports that `_owners` cannot read.
    if address.partition("://")[0] not in ("ray", address) or not _PORT.fullmatch(port or ""):
        raise ConfigError(
            f"{key}: {address!r} is not an address of a Ray cluster. Write HOST:PORT,"
            " ray://HOST:PORT or auto, or leave it out."
        )
    try:
        socket.create_connection((host, int(port or "")), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{key}: no Ray cluster answers at {address} ({error}). Start one with"
            " `ray start --head`, or leave it out."
        ) from error
    if others := _owners(address) - {os.getuid()}:
        raise ConfigError(
            f"{key}: the Ray cluster at {address} belongs to {_names(others)}, who could execute"
            " code as you. Start one of your own with `ray start --head`, or leave it out."
        )
    if "://" not in address and (refusal := _refusal(address)) is not None:
        raise ConfigError(
            f"{key}: no Ray cluster accepts this process at {address} ({refusal}). Set"
            " RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH as they were when it was started, or leave it"
            " out."
        )


def _refusal(address: str) -> str | None:
    """Return why no cluster at HOST:PORT accepts this process, such as its token; None if one does.

    `ray.init` would try again for minutes.
    """
    from ray import _raylet

    library: Any = _raylet  # compiled, without types
    try:
        library.GcsClient(address=address, cluster_id=None)
    except ray.exceptions.RayError as error:
        return str(error)
    return None


def _host_and_port(address: str) -> tuple[str, str | None]:
    """Return the host and the port of an address; None as the port if it has none."""
    place = address.rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if colon:
        return host.strip("[]"), port.partition("/")[0]
    return place, CLIENT_PORT if address.startswith("ray://") else None


def _owners(address: str) -> set[int]:
    """Return the ids of the users who listen at an address; empty if it is another machine's."""
    host, port = _host_and_port(address)
    if port is None or not port.isdecimal() or not hosts.is_local(host):
        return set()
    return hosts.users_at(int(port))


def _names(users: set[int]) -> str:
    """Return the names of users, for messages."""
    found = []
    for user in sorted(users):
        try:
            found.append(f"the user {pwd.getpwuid(user).pw_name}")
        except KeyError:
            found.append(f"the user with the id {user}")
    return " and ".join(found)
