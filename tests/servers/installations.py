"""Servers that belong together, and that works use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.servers.mlflow_server import Mlflow
from tests.servers.nodes import Nodes
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.s3 import KEYS, S3


class Installation(Protocol):
    """Servers by which a work is trained and tracked.

    Attributes:
        uri: Address of MLflow.
        address: Address of a Ray cluster; None without one.
        environment: Environment variables of the commands.
        counted: Address of MLflow's database; None if `uri` is that.
    """

    uri: str
    counted: str | None
    address: str | None
    environment: Mapping[str, str]

    def inside(self, command: list[str]) -> list[str]:
        """Return the command line of a command beside these servers."""


@dataclass
class Tracked:
    """MLflow's server on PostgreSQL, with a proxy before it and one before its server of S3.

    Attributes:
        database: PostgreSQL.
        server: MLflow.
        proxy: The proxy before MLflow.
        files: The proxy before the server of S3.
        counted: Address of MLflow's database.
        environment: Environment variables of the commands.
        address: None: there is no cluster.
    """

    database: Postgres
    server: Mlflow
    proxy: Proxy
    files: Proxy
    counted: str
    environment: Mapping[str, str] = field(default_factory=dict)
    address: None = None

    @property
    def uri(self) -> str:
        """Address of the proxy before MLflow."""
        return self.proxy.address

    def inside(self, command: list[str]) -> list[str]:
        return command


@dataclass
class Clustered:
    """A Ray cluster, and a database of SQLite for MLflow.

    Attributes:
        nodes: The cluster.
        uri: Address of the database.
        counted: None.
    """

    nodes: Nodes
    uri: str
    counted: None = None

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return self.nodes.address

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the commands."""
        return self.nodes.environment

    def inside(self, command: list[str]) -> list[str]:
        return self.nodes.inside(command)


class Installations:
    """Starts installations when they are needed, and stops all servers at the end.

    Args:
        folder: Folder for logs and files.
        database: Address of a database for MLflow at clusters.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._sqlite = folder, database
        self._tracked: dict[str, Tracked] = {}
        self._database: Postgres | None = None
        self._s3: S3 | None = None
        self._files = Proxy(S3.address, S3_PROXY)

    def begin(self, name: str) -> Installation:
        """Return an installation; a cluster is new for each fault.

        Args:
            name: `folder`, `served s3`, `direct s3` or `cluster`.
        """
        if name == "cluster":
            nodes = Nodes(Path("/run/flbench-ray"))
            nodes.start()
            return Clustered(nodes, self._sqlite)
        if name not in self._tracked:
            self._tracked[name] = self._make(name)
        return self._tracked[name]

    def leave(self, installation: Installation) -> None:
        """End what is new for each fault."""
        if isinstance(installation, Clustered):
            installation.nodes.stop()

    def close(self) -> None:
        """Stop all servers."""
        for one in self._tracked.values():
            one.proxy.stop()
            one.server.kill()
        self._files.stop()
        for server in (self._database, self._s3):
            if server is not None:
                server.kill()

    def _make(self, name: str) -> Tracked:
        if self._database is None:
            self._database = Postgres(self._folder / "postgres")
            self._database.start()
        if name != "folder" and self._s3 is None:
            self._s3 = S3(self._folder / "s3")
            self._s3.start()
            self._s3.bucket("flbench")
            self._files.start()
        where = self._folder / name.replace(" ", "-")
        port = PORTS[name]
        files = str(where / "files") if name == "folder" else f"s3://flbench/{where.name}"
        database = self._database.database(where.name)
        server = Mlflow(
            where,
            port,
            database,
            files,
            served=name != "direct s3",
            s3=None if name == "folder" else self._files.address,
        )
        server.start()
        proxy = Proxy(server.address, port + 100)
        proxy.start()
        keys = KEYS | {"MLFLOW_S3_ENDPOINT_URL": self._files.address}
        own = keys if name == "direct s3" else {}
        return Tracked(self._database, server, proxy, self._files, database, own)


PORTS = {"folder": 5001, "served s3": 5002, "direct s3": 5003}
S3_PROXY = 9100
