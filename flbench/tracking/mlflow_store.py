"""MLflow's store: which one, whether MLflow is there, how it is opened safely, why it was not."""

import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from flbench.core.errors import ConfigError, UserError
from flbench.tracking import mlflow_view

INSTALL: Final = "MLflow is not installed. Install it: pip install 'flbench[mlflow]'"
SETTINGS: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the mirror tries again by itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Of MLflow, where the user's environment says nothing else."""
UPLOAD: Final = "60"  # seconds that a server may take to store a file
LATE: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"


def installed() -> bool:
    """Return whether MLflow is installed.

    A folder `mlflow/` in the working directory can be imported, and is not MLflow.
    """
    try:
        metadata.version("mlflow")
    except metadata.PackageNotFoundError:
        return False
    return True


def require() -> None:
    """Raise a UserError if MLflow is not installed."""
    if not installed():
        raise UserError(f"{INSTALL}.")


def address(uri: str | None) -> str:
    """Return where to send: `uri`, else $MLFLOW_TRACKING_URI, else the local database."""
    found = uri or os.environ.get("MLFLOW_TRACKING_URI")
    return found or f"sqlite:///{Path.cwd() / 'mlflow' / 'flbench.db'}"


def database(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other store."""
    scheme, _, path = uri.partition(":///")
    return Path(path) if scheme.split("+")[0] == "sqlite" and path else None


def artifacts(uri: str) -> str | None:
    """Return where artifacts of new experiments go: beside the database; None: the server says."""
    if urlsplit(uri).scheme in ("http", "https"):
        return None
    file = database(uri)
    folder = Path.cwd() / "mlflow" if file is None else file.absolute().parent
    return (folder / "artifacts").as_uri()


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
        client: MLflow's.
        uri: of the store.
    """

    client: Any
    uri: str

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if it is not there.

        Raises: ConfigError if it was deleted.
        """
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                made = str(self.client.create_experiment(name, artifacts(self.uri)))
            except MlflowException:  # another process was quicker
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
            else:
                self.view(made, mlflow_view.RUNS, mlflow_view.of_runs())
                return made
        if found.lifecycle_stage != "active":
            raise ConfigError(
                f"the experiment `{name}` was deleted in MLflow. Restore it there, or choose"
                " another: tracking.experiment=NAME."
            )
        return str(found.experiment_id)

    def view(self, experiment: str, name: str, state: str) -> None:
        """Set a view of an experiment's table."""
        self.client.set_experiment_tag(experiment, mlflow_view.TAG + name, state)

    def runs(self, experiment: str, tag: str, value: str) -> Iterator[Any]:
        """Yield the runs of an experiment that have a tag."""
        query, token = f"tags.`{tag}` = '{value}'", None
        while True:
            page = self.client.search_runs([experiment], query, page_token=token)
            yield from page
            token = page.token
            if not token:
                return


def open_store(uri: str) -> Store:
    """Open a store; one that is not there yet is made once, whoever asks first.

    Raises: what MLflow raises if it cannot be reached: see `troubles`.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    with _alone(uri):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)  # makes the tables
    return Store(client, uri)


def troubles() -> tuple[type[Exception], ...]:
    """Return what is raised where a store is away, slow or broken."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError is what requests raises; ImportError a database's missing driver.
    return (MlflowException, SQLAlchemyError, OSError, ImportError)


def reason(error: BaseException) -> str:
    """Return a few words on why a store was not reached."""
    chain, cause = [], error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    text = " ".join(str(item) for item in chain)
    for sign, words in (
        ("refused", "connection refused"),
        ("timed out", "no answer in time"),
        ("Name or service not known", "there is no such host"),
        ("Temporary failure in name resolution", "there is no such host"),
        ("closed connection without response", "the connection broke off"),
        ("Connection aborted", "the connection broke off"),
    ):
        if sign in text:
            return words
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".")


@contextmanager
def patience() -> Iterator[None]:
    """Give a server longer to answer, while a file is sent."""
    before = os.environ.get(LATE)
    os.environ[LATE] = UPLOAD
    try:
        yield
    finally:
        if before is None:
            del os.environ[LATE]
        else:
            os.environ[LATE] = before


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Keep other processes from opening the same database meanwhile.

    MLflow fails where several processes make a database's tables at once. A server makes its own.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        yield
        return
    file = database(uri)
    if file is None:
        name = sha256(uri.encode()).hexdigest()[:16]
        lock = Path(tempfile.gettempdir()) / f"flbench-{os.getuid()}-{name}.lock"
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(file.name + ".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if file is not None:
            connection = sqlite3.connect(file)
            try:
                # Readers and a writer do not wait for each other; the file remembers it.
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
        yield
