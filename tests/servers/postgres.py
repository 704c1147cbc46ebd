"""PostgreSQL, from Debian's packages."""

import re
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.server import ProcessServer

AS_POSTGRES: Final = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
"""PostgreSQL refuses to run as root."""
DATA: Final = Path("/run/flbench-postgres")  # in the memory of the tests' own namespace
PORT: Final = 5432


def programs() -> Path | None:
    """Return the folder with the programs of the newest version; None if there is none."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(found, key=lambda file: int(file.parts[-3]), default=None)
    return None if newest is None else newest.parent


def version() -> str:
    """Return the version of the programs."""
    said = subprocess.run([f"{programs()}/postgres", "--version"], capture_output=True, text=True)
    found = re.search(r"[0-9.]+", said.stdout)
    assert found is not None
    return found[0]


class Postgres(ProcessServer):
    """A server of PostgreSQL on the loopback interface, which trusts everybody.

    Args:
        folder: Folder for its log.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = programs()
        assert found is not None
        self._programs = found
        self.address = f"postgresql+psycopg2://mlflow@127.0.0.1:{PORT}"
        DATA.mkdir()
        subprocess.run(["chown", "postgres:postgres", DATA], check=True)
        init = ("initdb", "--auth=trust", "--username=mlflow", "--no-sync", f"--pgdata={DATA}")
        subprocess.run(self._called(*init), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def command(self) -> list[str]:
        listening = ("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={DATA}")
        return self._called(
            "postgres", "-D", str(DATA), "-p", str(PORT), *listening, "-c", "fsync=off"
        )

    def answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(PORT)]
        return subprocess.run(ready).returncode == 0

    def database(self, name: str) -> str:
        """Create a database, and return its address."""
        create = ("createdb", "-h", "127.0.0.1", "-p", str(PORT), "-U", "mlflow", name)
        subprocess.run(self._called(*create), check=True, cwd="/")
        return f"{self.address}/{name}"

    def _called(self, program: str, *arguments: str) -> list[str]:
        return [*AS_POSTGRES, str(self._programs / program), *arguments]
