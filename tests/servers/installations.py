"""Servers that belong together, and that works use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.mlflow_server import Mlflow
from tests.servers.nodes import Nodes
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.s3 import KEYS, S3


@dataclass
class Servers:
    """Servers by which a work is trained and tracked.

    Attributes:
        uri: Address of MLflow: of the proxy before its server, or of a database of SQLite.
        counted: Address of MLflow's database; None if `uri` is that.
        environment: Environment variables of the commands.
        address: Address of a Ray cluster; None without one.
        nodes: The cluster, beside which commands are started.
        database: PostgreSQL.
        server: MLflow.
        proxy: The proxy before MLflow.
        files: The proxy before the server of S3.
    """

    uri: str
    counted: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    nodes: Nodes | None = None
    database: Postgres | None = None
    server: Mlflow | None = None
    proxy: Proxy | None = None
    files: Proxy | None = None

    def inside(self, command: list[str]) -> list[str]:
        """Return the command line of a command beside these servers."""
        return command if self.nodes is None else self.nodes.inside(command)


class Installations:
    """Starts installations when they are needed, and stops all servers at the end.

    Args:
        folder: Folder for logs and files.
        database: Address of a database for MLflow at clusters.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._sqlite = folder, database
        self._tracked: dict[str, Servers] = {}
        self._database: Postgres | None = None
        self._s3: S3 | None = None
        self._files = Proxy(S3.address, S3_PROXY)

    def begin(self, name: str) -> Servers:
        """Return an installation; a cluster is new for each fault.

        Args:
            name: `folder`, `served s3`, `direct s3` or `cluster`.
        """
        if name == "cluster":
            nodes = Nodes(Path("/run/flbench-ray"))
            nodes.start()
            return Servers(
                self._sqlite, environment=nodes.environment, address=nodes.address, nodes=nodes
            )
        if name not in self._tracked:
            self._tracked[name] = self._make(name)
        return self._tracked[name]

    def leave(self, servers: Servers) -> None:
        """End what is new for each fault."""
        if servers.nodes is not None:
            servers.nodes.stop()

    def close(self) -> None:
        """Stop all servers."""
        of_mlflow = [one for each in self._tracked.values() for one in (each.proxy, each.server)]
        for server in (*of_mlflow, self._files, self._database, self._s3):
            if server is not None:
                server.kill()

    def _make(self, name: str) -> Servers:
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
        return Servers(
            *(proxy.address, database, own),
            database=self._database,
            server=server,
            proxy=proxy,
            files=self._files,
        )


PORTS = {"folder": 5001, "served s3": 5002, "direct s3": 5003}
S3_PROXY = 9100
