"""Two nodes of a Ray cluster in two network namespaces, which a pair of virtual links connects."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

NEAR: Final = "flbench-near"
"""Name of the namespace of the head and of the commands of flbench."""
FAR: Final = "flbench-far"
HOSTS: Final = {NEAR: "10.77.0.1", FAR: "10.77.0.2"}
LINKS: Final = {NEAR: "near", FAR: "far"}
PORT: Final = 6379
NAMESPACES: Final = Path("/run/netns")
"""Where `ip netns` keeps its files."""


class Nodes:
    """The cluster: a head and another node, with one CPU each.

    Args:
        folder: Folder for the files of Ray, whose path must be short.
    """

    address = f"{HOSTS[NEAR]}:{PORT}"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        token = folder / "token"
        folder.mkdir(parents=True, exist_ok=True)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "200",  # the machine may have other work
        }

    def start(self) -> None:
        """Start the cluster; if that fails, nothing is left of it."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        for name in HOSTS:
            _ip("netns", "add", name)
        _ip("link", "add", LINKS[NEAR], "type", "veth", "peer", "name", LINKS[FAR])
        for name, host in HOSTS.items():
            _ip("link", "set", LINKS[name], "netns", name)
            _ip("-n", name, "address", "add", f"{host}/24", "dev", LINKS[name])
            _ip("-n", name, "link", "set", LINKS[name], "up")
            _ip("-n", name, "link", "set", "lo", "up")
        self._ray(NEAR, "--head", f"--port={PORT}", "--include-dashboard=false")
        self._ray(FAR, f"--address={self.address}")

    def stop(self) -> None:
        """Stop the cluster, and remove its files and the namespaces."""
        for name in HOSTS:
            if (NAMESPACES / name).exists():
                _end_all(name)
                _ip("netns", "delete", name)  # the links end with it
        shutil.rmtree(self._folder)

    def kill(self) -> None:
        """End all processes of the node that is not the head."""
        _end_all(FAR)

    def cut(self) -> None:
        """Take the link between the nodes down."""
        _ip("-n", FAR, "link", "set", LINKS[FAR], "down")

    def connect(self) -> None:
        """Take the link up again."""
        _ip("-n", FAR, "link", "set", LINKS[FAR], "up")

    def inside(self, command: list[str]) -> list[str]:
        """Return the command line of a command beside the head."""
        return ["ip", "netns", "exec", NEAR, *command]

    def _ray(self, name: str, *arguments: str) -> None:
        """Start the servers of a node."""
        # Ray's own processes outlive this command.
        own = [f"--node-ip-address={HOSTS[name]}", "--num-cpus=1", "--num-gpus=0"]
        own += ["--object-store-memory=100000000", "--disable-usage-stats"]
        if name == NEAR:
            own.append(f"--temp-dir={self._folder / 'ray'}")
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *own, *arguments]
        subprocess.run(
            ["ip", "netns", "exec", name, *ray],
            env=os.environ | self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=240,
        )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _end_all(name: str) -> None:
    """End the processes of a namespace."""
    for _ in range(50):
        said = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=True
        )
        pids = [int(pid) for pid in said.stdout.split()]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    raise AssertionError(f"processes of {name} did not end: {pids}")
