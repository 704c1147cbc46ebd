"""Servers that belong together, and that works use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.nodes import Nodes
from tests.servers.proxy import Proxy
from tests.servers.server import S3, S3_KEYS, Mlflow

PORTS = {"folder": 5001, "s3": 5002}
S3_PROXY = 9100


@dataclass
class Servers:
    """Servers by which a work is trained and tracked.

    Attributes:
        uri: Address of MLflow: of the proxy before its server, or of a database of SQLite.
        environment: Environment variables of the commands.
        nodes: A Ray cluster, beside which commands are started.
        server: MLflow.
        proxy: The proxy before MLflow.
        files: The proxy before the server of S3.
    """

    uri: str
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: Nodes | None = None
    server: Mlflow | None = None
    proxy: Proxy | None = None
    files: Proxy | None = None


class Installations:
    """Starts installations when they are needed, and stops all servers at the end.

    Args:
        folder: Folder for logs, files, and the database of MLflow at clusters.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Servers] = {}
        self._s3 = S3(folder / "s3")
        self._files = Proxy(S3.address, S3_PROXY)

    def begin(self, name: str) -> Servers:
        """Return an installation: `folder`, `s3` or `cluster`, which is new for each fault."""
        if name == "cluster":
            nodes = Nodes(Path("/run/flbench-ray"))
            nodes.start()
            return Servers(f"sqlite:///{self._folder / 'clusters.db'}", nodes.environment, nodes)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def close(self) -> None:
        """Stop all servers."""
        of_mlflow = [one for each in self._made.values() for one in (each.proxy, each.server)]
        for server in (*of_mlflow, self._files, self._s3):
            if server is not None:
                server.kill()

    def _make(self, name: str) -> Servers:
        environment: dict[str, str] = {}
        if name == "s3":
            self._s3.start()
            self._files.start()
            environment = S3_KEYS | {"MLFLOW_S3_ENDPOINT_URL": self._files.address}
        s3, port = self._files.address if name == "s3" else None, PORTS[name]
        server = Mlflow(self._folder / name, port, s3)
        server.start()
        proxy = Proxy(server.address, port + 100)
        proxy.start()
        return Servers(proxy.address, environment, server=server, proxy=proxy, files=self._files)
