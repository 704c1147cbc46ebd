"""MLflow's store: its address, and how it is opened."""

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from flbench.core import files
from flbench.core.errors import ConfigError, UserError
from flbench.core.text import HTTP, MASK, is_of_this_machine, redact_address, without_user
from flbench.tracking import mlflow_view

NOT_INSTALLED: Final = "MLflow is not installed. Install it: pip install 'flbench[mlflow]'"
ADDRESS_VARIABLE: Final = "MLFLOW_TRACKING_URI"
NamedBy = Literal["user", "file", "folder", "nobody"]
"""Who names an address: the user in a command or call, a configuration file, a folder of results,
or nobody: it is the database in the current folder, which may be somebody else's."""
FOLDER_VARIABLE: Final = "MLFLOW_ALLOW_FILE_STORE"
DATABASE_SERVERS: Final = ("postgresql", "mysql", "mssql")
OWN_FOLDERS: Final = ("mlflow", "artifacts")
"""Folders of the files of a database that nobody has named."""
_WHO: Final = {
    "file": "a file names it",
    "folder": "a folder names it",
    "nobody": "you have not named it",
}
TIMEOUT_VARIABLE: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
RETRIES_VARIABLE: Final = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
UPLOAD_SECONDS: Final = "60"
SMALL_FILE: Final = 1_000_000  # bytes; a larger file has more time
LONGEST_VIEW: Final = 20_000  # characters, MLflow's limit
LOCK_SECONDS: Final = 20.0  # a database of SQLite may be locked; MLflow waits as long
ENVIRONMENT: Final = {
    RETRIES_VARIABLE: "0",  # the mirror retries by itself
    TIMEOUT_VARIABLE: "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Variables that configure MLflow. A value in the user's environment has precedence."""
_set_here: set[str] = set()  # variables of the environment that the user has not set


def who_names(uri: str | None, named_by: NamedBy) -> NamedBy:
    """Return who names the store at `address(uri, named_by)`.

    Args:
        uri: What was asked for.
        named_by: Who names it.
    """
    return named_by if uri or os.environ.get(ADDRESS_VARIABLE) else "nobody"


def installed() -> bool:
    """Return whether MLflow is installed.

    The import of `mlflow` proves nothing: a folder of that name in the working directory can be
    imported too.
    """
    try:
        metadata.version("mlflow")
    except metadata.PackageNotFoundError:
        return False
    return True


def require() -> None:
    """Raise a UserError if MLflow is not installed."""
    if not installed():
        raise UserError(f"{NOT_INSTALLED}.")


def address(uri: str | None, named_by: NamedBy = "user") -> str:
    """Return the address of the store, with its user and password.

    MLflow sends the credentials of the environment, and those of ~/.mlflow/credentials, to any
    server. So an address that a folder of results or a configuration file names may be one that
    somebody else has chosen.

    Args:
        uri: What was asked for. None stands for $MLFLOW_TRACKING_URI, or for the database
            mlflow/flbench.db in the working directory if that variable is not set. An address
            without its secrets, as config.yaml has it, is completed from the environment.
        named_by: Who names it. The address of a folder must be the one of $MLFLOW_TRACKING_URI, a
            file or an SQLite database; and that of a configuration file too if there are
            credentials.

    Raises:
        ConfigError: The environment does not have the user and the password of the address, or the
            address is one of a folder or file and not the user's own; or MLflow keeps nothing
            there.
    """
    found = _address(uri, named_by)
    _check_keeps(found)
    return found


def _address(uri: str | None, named_by: NamedBy) -> str:
    """Return the address of the store; see `address`."""
    in_environment = os.environ.get(ADDRESS_VARIABLE)
    if not uri:
        return in_environment or _of_file(Path.cwd() / "mlflow" / "flbench.db")
    shown = redact_address(uri)
    if named_by != "user" and in_environment and _place(shown) == _place(in_environment):
        return in_environment
    found = _completed(uri, in_environment)
    is_trusted = named_by == "user" or is_of_this_machine(found)
    if is_trusted or (named_by == "file" and not _any_credentials()):
        return found
    what = "results" if named_by == "folder" else "credentials of MLflow"
    raise ConfigError(
        f"{shown} is an address that a {named_by} names, and not that of ${ADDRESS_VARIABLE}. To"
        f" send {what} there, set ${ADDRESS_VARIABLE}={shown}, or give the address yourself:"
        " tracking.uri=ADDRESS for flbench run, compare and tune, --uri ADDRESS for flbench sync."
    )


def _place(uri: str) -> str:
    """Return an address without user, password and case, for comparisons."""
    return without_user(redact_address(uri)).rstrip("/").lower()


def _check_keeps(uri: str) -> None:
    """Check that MLflow keeps runs at an address.

    Raises:
        ConfigError: It is a database in memory, or a folder.
    """
    shown = redact_address(uri)
    cure = (
        "Give the file of a database: sqlite:///FILE, by tracking.uri, --uri (flbench sync, ui) or"
        f" ${ADDRESS_VARIABLE}."
    )
    scheme, colon, rest = uri.partition(":")
    path = rest.partition("?")[0].lstrip("/")
    if scheme.partition("+")[0] == "sqlite" and (not path or ":memory:" in rest):
        raise ConfigError(f"{shown} is a database in memory, which ends with the process. {cure}")
    is_folder = scheme == "file" if colon else is_of_this_machine(uri)
    if is_folder and os.environ.get(FOLDER_VARIABLE, "").lower() not in ("true", "1"):
        raise ConfigError(
            f"{shown} is a folder, in which MLflow 3.13 and later keep no runs. {cure}\nTo go on"
            f" with a folder, convert it (mlflow migrate-filestore) or set {FOLDER_VARIABLE}=true."
        )


def _completed(uri: str, in_environment: str | None) -> str:
    """Return an address with the secrets that the environment has for it."""
    if MASK not in uri:
        return uri
    if in_environment and redact_address(in_environment) == uri:
        return in_environment
    is_http = urlsplit(uri).scheme in HTTP
    bare = without_user(uri)
    if is_http and MASK not in bare and _has_credentials():
        return bare  # MLflow adds the credentials to its requests
    others = " (or $MLFLOW_TRACKING_USERNAME and $MLFLOW_TRACKING_PASSWORD)" if is_http else ""
    raise ConfigError(
        f"the password of {uri} is not stored in the run folder. Set ${ADDRESS_VARIABLE} to the"
        f" complete address{others}, or give the address again: tracking.uri=ADDRESS for flbench"
        " run, --uri ADDRESS for flbench sync."
    )


def _has_credentials() -> bool:
    """Return whether the environment has credentials that MLflow sends to any server."""
    names = [
        name
        for name in ("USERNAME", "PASSWORD", "TOKEN")
        if os.environ.get(f"MLFLOW_TRACKING_{name}")
    ]
    return "TOKEN" in names or len(names) == 2


def _any_credentials() -> bool:
    """Return whether MLflow has credentials that it sends to any server."""
    variables = ("USERNAME", "PASSWORD", "TOKEN", "AUTH", "AWS_SIGV4", "CLIENT_CERT_PATH")
    in_environment = any(os.environ.get(f"MLFLOW_TRACKING_{name}") for name in variables)
    return in_environment or Path("~/.mlflow/credentials").expanduser().exists()


def database_file(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other store.

    >>> database_file("sqlite:////a%3Fb/flbench.db?timeout=5").as_posix()
    '/a?b/flbench.db'
    """
    scheme, _, rest = uri.partition(":///")
    path = unquote(rest.partition("?")[0])
    return Path(path) if scheme.split("+")[0] == "sqlite" and path else None


def _of_file(file: Path) -> str:
    """Return the address of an SQLite database; `?`, `#` and `%` of the path are encoded."""
    path = str(file)
    for character in "%?#":
        path = path.replace(character, f"%{ord(character):02X}")
    return f"sqlite:///{path}"


def for_mlflow(uri: str) -> str:
    """Return the address that MLflow gets.

    MLflow does not decode the path of `sqlite:` where it makes the folder of a database, and would
    make another one. With the name of the driver it makes none; flbench makes the right one.
    """
    return uri.replace("sqlite:", "sqlite+pysqlite:", 1) if "%" in uri else uri


def artifact_location(uri: str) -> str | None:
    """Return where the files of new experiments are stored.

    That is the folder `artifacts` beside an SQLite database, `mlflow/artifacts` for another
    database, and None for a server, which chooses the place itself.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        return None
    file = database_file(uri)
    folder = Path.cwd() / "mlflow" if file is None else file.absolute().parent
    return (folder / "artifacts").as_uri()


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
        client: MLflow's client.
        uri: Address of the store.
        named_by: Who names the address.
    """

    client: Any
    uri: str
    named_by: NamedBy = "user"

    @property
    def shown(self) -> str:
        """Address of the store without its secrets."""
        return redact_address(self.uri)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if it does not exist.

        Raises:
            ConfigError: The experiment was deleted, or a local database keeps its files on a server
                of HTTP.
        """
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                created = str(self.client.create_experiment(name, artifact_location(self.uri)))
            except MlflowException:  # another process made it in the meantime
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
            else:
                self.set_view(created, mlflow_view.RUNS_VIEW, mlflow_view.runs_view())
                return created
        if experiment.lifecycle_stage != "active":
            raise ConfigError(
                f"the experiment `{name}` was deleted in MLflow. Restore it there, or choose"
                " another: tracking.experiment=NAME."
            )
        self.check_artifacts(experiment.artifact_location)
        return str(experiment.experiment_id)

    def check_artifacts(self, location: str) -> None:
        """Check where a local database keeps the files of its runs.

        The database may be somebody else's. MLflow sends its credentials to a server, and
        overwrites files in a folder that the database names.

        Args:
            location: Address of the files of an experiment or a run.

        Raises:
            ConfigError: The store is local, and the location is a server; or the user has not named
                the store, and the location is not a folder below that of the database.
        """
        if not is_of_this_machine(self.uri):
            return
        shown = redact_address(location)
        if urlsplit(location).scheme in (*HTTP, "mlflow-artifacts"):
            raise ConfigError(
                f"{self.uri} keeps files at {shown}, a server that would get MLflow's credentials."
                " Choose another experiment: tracking.experiment=NAME, or give the server: --uri"
                " ADDRESS or tracking.uri=ADDRESS."
            )
        if self.named_by == "user":
            return
        folder = _path(location)
        # The folder of a project may have been moved or copied with its database.
        if self.named_by == "nobody" and folder is not None and _is_own(folder):
            return
        if folder is None or not folder.resolve().is_relative_to(_folder(self.uri).resolve()):
            raise ConfigError(
                f"{self.uri} keeps files at {shown}, which is not below its own folder, and"
                f" {_WHO[self.named_by]}. If it is yours, give it yourself: --uri ADDRESS for"
                " flbench sync, tracking.uri=ADDRESS for flbench run, compare and tune."
            )

    def check_no_links(self, location: str) -> None:
        """Check that no file of a run is a link, in a local store that the user has not named.

        Args:
            location: Address of the files of the run.

        Raises:
            UserError: A file or folder is a link.
        """
        folder = _path(location)
        if self.named_by != "user" and folder is not None:
            for above, names, others in os.walk(folder):
                for name in (*names, *others):
                    files.check_no_link(Path(above, name))

    def set_view(self, experiment: str, name: str, view: str) -> None:
        """Set a view of an experiment's table; see `flbench.tracking.mlflow_view`.

        MLflow refuses a view that is too long; its pages then show the columns that a user picks.
        """
        if len(view) > LONGEST_VIEW:
            return
        self.client.set_experiment_tag(experiment, mlflow_view.VIEW_TAG_PREFIX + name, view)

    def runs(self, experiment: str, tag: str, identifier: str) -> Iterator[Any]:
        """Yield the runs of an experiment whose tag has a value.

        Args:
            experiment: MLflow's id of the experiment.
            tag: Name of the tag.
            identifier: The value, see `mlflow_names.identifier`.
        """
        query, token = f"tags.`{tag}` = '{identifier}'", None
        while True:
            page = self.client.search_runs([experiment], query, page_token=token)
            yield from page
            token = page.token
            if not token:
                return


def _path(location: str) -> Path | None:
    """Return the path of a location on this machine; None for any other."""
    if "://" in location:
        parts = urlsplit(location)
        is_path = parts.scheme == "file" and parts.netloc in ("", "localhost")
        return Path(unquote(parts.path)) if is_path else None
    return Path(unquote(location.removeprefix("file:")))


def _is_own(folder: Path) -> bool:
    """Return whether a path is that of the files of a database `mlflow/flbench.db`."""
    parts = folder.resolve().parts
    return any(pair == OWN_FOLDERS for pair in pairwise(parts))


def _folder(uri: str) -> Path:
    """Return the folder of a local store: that of its database, or the one with its files."""
    file = database_file(uri)
    return file.absolute().parent if file is not None else _path(uri) or Path.cwd()


def _check_is_store(uri: str, named_by: NamedBy) -> None:
    """Check that a file which the user has not named is a database of MLflow, or does not exist.

    Opening a database makes MLflow's tables in it.

    Raises:
        UserError: The file is a link, or something else.
    """
    file = database_file(uri)
    if named_by == "user" or file is None or not (file.exists() or file.is_symlink()):
        return
    files.check_no_link(file)
    if "experiments" not in _tables(file) and (lock_file := _lock_of(file)).exists():
        with FileLock(lock_file):  # another process may be making the tables
            pass
    if "experiments" not in _tables(file):
        raise UserError(
            f"{file} is not a database of MLflow, and {_WHO[named_by]}. Name the store yourself:"
            " --uri ADDRESS for flbench sync, tracking.uri=ADDRESS for flbench run, compare and"
            " tune."
        )


def _tables(file: Path) -> set[str]:
    """Return the names of the tables of a database of SQLite; none if it is another file."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error:
        return set()


def _lock_of(file: Path) -> Path:
    """Return the file that is locked while the tables of a database are made."""
    return file.with_name(file.name + ".lock")


def open_store(uri: str, named_by: NamedBy = "user") -> Store:
    """Open a store. A database that does not exist is made.

    Args:
        uri: Address of the store.
        named_by: Who names it.

    Raises:
        UserError: The user has not named it, and it is not a database of MLflow.
        Exception: The store cannot be used: one of `mlflow_errors.connection_errors`.
    """
    _check_is_store(uri, named_by)
    for name, value in ENVIRONMENT.items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here.add(name)
    from mlflow import MlflowClient

    # It prints the traceback of an error that it raises too.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    _check_answers(uri)
    with _exclusive(uri):
        client = MlflowClient(tracking_uri=for_mlflow(uri))
        client.search_experiments(max_results=1)  # makes the tables
    return Store(client, uri, named_by)


def _check_answers(uri: str) -> None:
    """Open a connection to a database server, which MLflow tries for 100 seconds.

    Raises:
        Exception: The server does not answer, refuses the user, or its driver is not installed.
    """
    if urlsplit(uri).scheme.partition("+")[0] not in DATABASE_SERVERS:
        return
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with create_engine(uri, poolclass=NullPool).connect():
        pass


@contextmanager
def settings(values: Mapping[str, str]) -> Iterator[None]:
    """Configure MLflow inside the context.

    Args:
        values: Variables of the environment. One that the user has set keeps its value.
    """
    mine = {name: value for name, value in values.items() if _is_free(name)}
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    _set_here.update(mine)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
                _set_here.discard(name)
            else:
                os.environ[name] = value


def _is_free(name: str) -> bool:
    """Return whether the user has not set a variable of the environment."""
    return name not in os.environ or name in _set_here


def upload_settings(size: int) -> AbstractContextManager[None]:
    """Wait longer for the server's answers inside the context, in which a large file is sent.

    Args:
        size: Size of the file in bytes.
    """
    return settings({TIMEOUT_VARIABLE: UPLOAD_SECONDS} if size > SMALL_FILE else {})


@contextmanager
def _exclusive(uri: str) -> Iterator[None]:
    """Prevent other processes from opening the same database inside the context.

    MLflow fails if several processes make a database's tables at once. A server makes its own
    tables, so it needs no lock.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        yield
        return
    file = database_file(uri)
    if file is None:
        # In the folder for temporary files, another user could make a file of this name before.
        lock_file = files.cache_folder() / f"{sha256(uri.encode()).hexdigest()[:16]}.lock"
    else:
        lock_file = _lock_of(file)
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock_file):
        if file is not None:
            connection = sqlite3.connect(file, timeout=LOCK_SECONDS)
            try:
                # With this mode, which the file keeps, readers and a writer do not wait for each
                # other.
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
        yield
