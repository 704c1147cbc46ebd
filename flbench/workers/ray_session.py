"""Connections to Ray, for the process of a driver: to a new cluster, or to one that runs."""

import os
import re
import socket
from pathlib import Path
from typing import Any, Final

import ray
from ray.job_config import JobConfig

from flbench.core.control_groups import available_cores
from flbench.core.errors import ConfigError, RunError

_ADDRESS: Final = re.compile(r"(ray://)?([^\s/]+):([0-9]{1,5})")
"""Addresses of clusters. Ray would import the module that another scheme names."""
_called: Final[list[tuple[str, int]]] = []
"""Host and port of the servers that this process calls, as far as they can be reached without a
proxy."""


def connect(
    address: str | None,
    key: str = "`engine.address`",
    cpus: int | None = None,
    folder: str | None = None,
) -> list[tuple[str, int]]:
    """Connect this process to a Ray cluster; see `flbench.workers.ray_driver`.

    Args:
        address: Address of a running cluster, `HOST:PORT` or `ray://HOST:PORT`; `auto` for the one
            that `RAY_ADDRESS` names, or that this user has started last on this machine; None or
            `local` to start one on this machine.
        key: The key or option of the address, as error messages write it.
        cpus: Number of CPUs of a cluster that is started; None takes the available cores.
        folder: Folder for the files of a cluster that is started.

    Returns:
        Host and port of the servers that this process calls: the cluster's and that of its node.

    Raises:
        ConfigError: No cluster answers at the address.
        RunError: Ray does not start on this machine.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if folder is None:
        _join(options, str(address), key)
    else:
        _start(options, available_cores() if cpus is None else cpus, folder)
    _called[:] = [one for one in _servers() if connection_error(one) is None]
    return [*_called]


def connection_error(server: tuple[str, int]) -> OSError | None:
    """Return the error of a connection to host and port; None if a server accepts it."""
    try:
        socket.create_connection(server, timeout=2).close()
    except OSError as error:
        return error
    return None


def are_lost() -> bool:
    """Return whether a server does not answer: workers are lost for this reason then."""
    return any(connection_error(one) for one in _called)


def _servers() -> list[tuple[str, int]]:
    """Return host and port of the servers that this process calls."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    own = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    nodes = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in own]
    return [(host.strip("[]"), int(port)), *nodes]


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
        raise RunError(f"Ray did not start on this machine: {error}") from error


def _join(options: dict[str, Any], address: str, key: str) -> None:
    """Join a cluster that runs already. Ray would wait for minutes for one that does not."""
    found = _own() if address == "auto" else address
    try:
        match = _ADDRESS.fullmatch(found)
        if match is None:
            raise ValueError("write HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((match[2].strip("[]"), int(match[3])), timeout=10).close()
        own = {} if match[1] else {"job_config": _Job()}
        ray.init(address=found, **options, **own)
    except Exception as error:
        raise ConfigError(
            f"{key}: no Ray cluster of this user answers at {found} ({error}). Start one with `ray"
            " start --head`, with the token in RAY_AUTH_TOKEN_PATH; or leave it out."
        ) from error


def _own() -> str:
    """Return the address of the cluster that this user has started; `auto` if there is none.

    Any user can write to the folder of Ray's file.
    """
    from ray._common.utils import get_ray_address_file

    if (given := os.environ.get("RAY_ADDRESS", "auto")) != "auto":
        return given
    file = Path(get_ray_address_file(None))
    is_own = file.is_file() and file.stat().st_uid == os.getuid()
    return file.read_text("utf-8").strip() if is_own else "auto"


class _Job(JobConfig):  # type: ignore[misc]
    """The settings of this process for Ray, without the folders from which it imports.

    What is sent to Ray's workers names the folders to search; see `flbench.workers.portable`.
    """

    def _serialize(self) -> Any:
        self._py_driver_sys_path: list[str] = []
        return super()._serialize()
