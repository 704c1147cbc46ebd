"""Connections to Ray, for the process of a driver: to a new cluster, or to one that runs already.

A cluster of another user is refused: everybody who can call its servers could execute code as the
user who joins it.
"""

import os
import pwd
import re
import socket
from pathlib import Path
from typing import Any, ClassVar, Final

import ray
from ray.job_config import JobConfig

from flbench.core import hosts
from flbench.core.errors import ConfigError, RunError
from flbench.workers import cores

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
CLIENT_PORT: Final = "10001"
"""Port of an address `ray://HOST` without one."""
CONNECT_SECONDS: Final = 2.0
_PORT: Final = re.compile("[0-9]{1,5}")


def connect(
    address: str | None,
    key: str = "`engine.address`",
    cpus: int | None = None,
    folder: str | None = None,
) -> list[tuple[str, int]]:
    """Connect this process to a Ray cluster; see `flbench.workers.ray_driver`.

    Args:
        address: Address of a running cluster, `HOST:PORT` or `ray://HOST:PORT`; `auto` to find one
            of this user; None or `local` to start one on this machine.
        key: The key or option of the address, as error messages write it.
        cpus: Number of CPUs of a cluster that is started; None takes the available cores.
        folder: Folder for the files of a cluster that is started.

    Returns:
        Host and port of the servers that this process calls: the cluster's and that of its node.

    Raises:
        ConfigError: No cluster answers at the address, or another user has started it.
        RunError: Ray does not start on this machine.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if folder is None:
        _join(options, str(address), key)
    else:
        _start(options, cores.available() if cpus is None else cpus, folder)
    Servers.found = [one for one in _servers() if connection_error(one) is None]
    return Servers.found


def connection_error(server: tuple[str, int]) -> OSError | None:
    """Return the error of a connection to host and port; None if a server accepts it."""
    try:
        socket.create_connection(server, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


class Servers:
    """The servers that this process calls, as far as they can be reached without a proxy.

    Attributes:
        found: Host and port of each.
    """

    found: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def are_lost(cls) -> bool:
        """Return whether one of them does not answer: workers are lost for this reason then."""
        return any(connection_error(one) for one in cls.found)


def _servers() -> list[tuple[str, int]]:
    """Return host and port of the servers that this process calls."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    nodes = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    return [
        (host.strip("[]"), int(port)),
        *((node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes),
    ]


def _start(options: dict[str, Any], cpus: int, folder: str) -> None:
    """Start a cluster on this machine."""
    try:
        ray.init(
            # `local`: without it Ray would join a cluster that an environment variable names.
            address="local",
            include_dashboard=False,
            num_cpus=cpus,
            job_config=_Job(),
            # Workers begin in the current folder, from which PyTorch would take a library.
            runtime_env={"worker_process_setup_hook": "flbench.core.startup.load_pytorch"},
            # Ray lets everybody write to this folder, but nobody can reach it.
            _temp_dir=f"{folder}/r",
            **options,
        )
    except Exception as error:  # Ray raises the base class if a server does not start in time
        raise RunError(
            f"Ray did not start on this machine: {error} It waits half a minute for its"
            " servers: free memory, end programs that keep all cores busy, and try again."
        ) from error


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


class _Job(JobConfig):  # type: ignore[misc]
    """The job of this process, of whose folders Ray would make the first that workers search.

    They search them in the order of this process; see `flbench.core.parts.portable`.
    """

    def _serialize(self) -> Any:
        self._py_driver_sys_path: list[str] = []
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
