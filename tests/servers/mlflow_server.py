"""MLflow's server, as `mlflow/compose.yaml` starts it."""

import sys
import urllib.request
from pathlib import Path

from tests.servers.s3 import KEYS
from tests.servers.server import ProcessServer


class Mlflow(ProcessServer):
    """A server of MLflow on the loopback interface.

    Args:
        folder: Folder for its log.
        port: Its port.
        database: Address of its database.
        files: Where files are stored: a folder, or s3://BUCKET/PATH.
        served: Whether clients send files through the server. Otherwise they send them to S3.
        s3: Address of the server of S3; None without one.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        database: str,
        files: str,
        *,
        served: bool,
        s3: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.address = f"http://127.0.0.1:{port}"
        self._port, self._database, self._files, self._served = port, database, files, served
        self._s3 = s3

    def command(self) -> list[str]:
        if self._served:
            files = [f"--artifacts-destination={self._files}"]
        else:
            files = ["--no-serve-artifacts", f"--default-artifact-root={self._files}"]
        server = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", "--workers=1"]
        return [*server, f"--port={self._port}", f"--backend-store-uri={self._database}", *files]

    def environment(self) -> dict[str, str]:
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        return quiet | ({} if self._s3 is None else KEYS | {"MLFLOW_S3_ENDPOINT_URL": self._s3})

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False
