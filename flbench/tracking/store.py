"""MLflow's store: its address, who names it, and how it is opened."""

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from flbench.core import files
from flbench.core.errors import ConfigError, UserError
from flbench.core.text import HTTP, MASK, is_of_this_machine, redact_address, without_user

NOT_INSTALLED: Final = "MLflow is not installed. Install it: pip install 'flbench[mlflow]'"
ADDRESS_VARIABLE: Final = "MLFLOW_TRACKING_URI"
NamedBy = Literal["user", "file", "folder", "nobody"]
"""Who names an address: the user in a command or call, a configuration file, a folder of results,
or nobody: it is the database in the current folder, which may be somebody else's."""
FOLDER_VARIABLE: Final = "MLFLOW_ALLOW_FILE_STORE"
TIMEOUT_VARIABLE: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
RETRIES_VARIABLE: Final = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
CREDENTIALS: Final = ("TOKEN", "USERNAME", "PASSWORD", "AUTH", "AWS_SIGV4", "CLIENT_CERT_PATH")
"""Variables `MLFLOW_TRACKING_...` with what MLflow sends to any server."""
GIVE: Final = "--uri ADDRESS for flbench sync, tracking.uri=ADDRESS for flbench run, compare, tune"
LOCK_SECONDS: Final = 20.0  # a database of SQLite may be locked; MLflow waits as long
ENVIRONMENT: Final = {
    RETRIES_VARIABLE: "0",  # the mirror tries again by itself
    TIMEOUT_VARIABLE: "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Variables that configure MLflow. A value in the user's environment has precedence."""
_OF_USER: Final = frozenset(os.environ)


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


@dataclass(frozen=True)
class Address:
    """The address of a store.

    Attributes:
        uri: The address, with its user and password.
        named_by: Who names it. What the user has not named is opened and written to only if it is
            a database of MLflow that keeps its files below its own folder.
    """

    uri: str
    named_by: NamedBy = "user"

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        return redact_address(self.uri)

    def check_artifacts(self, location: str) -> None:
        """Check where a local database keeps the files of an experiment or a run.

        The database may be somebody else's. MLflow sends its credentials to a server, and
        overwrites files in a folder that the database names.

        Raises:
            ConfigError: The location is a server; or the user has not named the store, and the
                location is not a folder below that of the database.
            UserError: The user has not named the store, and a file or folder there is a link.
        """
        if not is_of_this_machine(self.uri):
            return
        shown, folder = redact_address(location), _path(location)
        if urlsplit(location).scheme in (*HTTP, "mlflow-artifacts"):
            raise ConfigError(
                f"{self.uri} keeps files at {shown}, a server that would get MLflow's credentials."
                " Choose another experiment (tracking.experiment=NAME), or give the server itself:"
                f" {GIVE}."
            )
        if self.named_by == "user":
            return
        file = database_file(self.uri)
        own = file.absolute().parent if file is not None else _path(self.uri) or Path.cwd()
        if folder is None or not folder.resolve().is_relative_to(own.resolve()):
            raise ConfigError(
                f"{self.uri} keeps files at {shown}, which is not below its own folder, and you"
                f" have not named it. If it is yours, give it yourself: {GIVE}."
            )
        for above, names, others in os.walk(folder):
            for name in (*names, *others):
                files.check_no_link(Path(above, name))


def address(uri: str | None, named_by: NamedBy = "user") -> Address:
    """Return the address of the store: the only place that decides whether it is trusted.

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
    of_user = os.environ.get(ADDRESS_VARIABLE)
    if not uri and not of_user:
        file = Path.cwd() / "mlflow" / "flbench.db"
        if {*"?#%"} & {*str(file)}:
            raise ConfigError(
                f"{file} cannot be an address of MLflow because of `?`, `#` or `%`. Choose another"
                f" working directory, or another store: {GIVE}."
            )
        return Address(f"sqlite:///{file}", "nobody")
    found = _trusted(uri, named_by, of_user) if uri else str(of_user)
    shown = redact_address(found)
    cure = f"Give the file of a database, sqlite:///FILE: {GIVE}; or set ${ADDRESS_VARIABLE}"
    scheme, colon, rest = found.partition(":")
    path = rest.partition("?")[0].lstrip("/")
    if scheme.partition("+")[0] == "sqlite" and (not path or ":memory:" in rest):
        raise ConfigError(f"{shown} is a database in memory, which ends with the process. {cure}.")
    is_folder = scheme == "file" if colon else is_of_this_machine(found)
    if is_folder and os.environ.get(FOLDER_VARIABLE, "").lower() not in ("true", "1"):
        raise ConfigError(
            f"{shown} is a folder, in which MLflow 3.13 and later keep no runs. {cure}.\nTo go on"
            f" with a folder, convert it (mlflow migrate-filestore) or set {FOLDER_VARIABLE}=true."
        )
    return Address(found, named_by)


def _trusted(uri: str, named_by: NamedBy, of_user: str | None) -> str:
    """Return an address that was named, completed by its secrets, if it may be used."""
    shown = redact_address(uri)
    if named_by != "user" and of_user and _place(shown) == _place(of_user):
        return of_user
    found, bare = uri, without_user(uri)
    if MASK in uri:
        given = {name for name in CREDENTIALS[:3] if os.environ.get(f"MLFLOW_TRACKING_{name}")}
        is_http = urlsplit(uri).scheme in HTTP
        if of_user and redact_address(of_user) == uri:
            found = of_user
        elif is_http and MASK not in bare and ("TOKEN" in given or len(given) == 2):
            found = bare  # MLflow adds the credentials to its requests
        else:
            raise ConfigError(
                f"the password of {uri} is not stored in the run folder. Set ${ADDRESS_VARIABLE} to"
                " the complete address, or for a server $MLFLOW_TRACKING_USERNAME and"
                f" $MLFLOW_TRACKING_PASSWORD, or give the address again: {GIVE}."
            )
    if named_by == "user" or is_of_this_machine(found):
        return found
    is_bare = not any(os.environ.get(f"MLFLOW_TRACKING_{name}") for name in CREDENTIALS)
    if named_by == "file" and is_bare and not Path("~/.mlflow/credentials").expanduser().exists():
        return found
    what = "results" if named_by == "folder" else "credentials of MLflow"
    raise ConfigError(
        f"{shown} is an address that a {named_by} names, and not that of ${ADDRESS_VARIABLE}. To"
        f" send {what} there, set ${ADDRESS_VARIABLE}={shown}, or give the address yourself:"
        f" {GIVE}."
    )


def _place(uri: str) -> str:
    """Return an address without user, password and case, for comparisons."""
    return without_user(redact_address(uri)).rstrip("/").lower()


def database_file(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other store.

    >>> database_file("sqlite:////a%3Fb/flbench.db?timeout=5").as_posix()
    '/a?b/flbench.db'
    """
    scheme, _, rest = uri.partition(":///")
    path = unquote(rest.partition("?")[0])
    return Path(path) if scheme.split("+")[0] == "sqlite" and path else None


def artifact_location(uri: str) -> str | None:
    """Return where the files of new experiments are stored.

    That is the folder `artifacts` beside an SQLite database, `mlflow/artifacts` for another
    database, and None for a server, which chooses the place itself.
    """
    if urlsplit(uri).scheme in HTTP:
        return None
    file = database_file(uri)
    folder = Path.cwd() / "mlflow" if file is None else file.absolute().parent
    return (folder / "artifacts").as_uri()


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
        client: MLflow's client.
        address: Its address.
    """

    client: Any
    address: Address

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if it does not exist.

        Raises:
            ConfigError: The experiment was deleted, or see `Address.check_artifacts`.
        """
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                uri = self.address.uri
                return str(self.client.create_experiment(name, artifact_location(uri)))
            except MlflowException:  # another process made it in the meantime
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise ConfigError(
                f"the experiment `{name}` was deleted in MLflow. Restore it there, or choose"
                " another: tracking.experiment=NAME."
            )
        self.address.check_artifacts(experiment.artifact_location)
        return str(experiment.experiment_id)

    def runs(self, experiment: str, query: str) -> Iterator[Any]:
        """Yield the runs of an experiment that a query finds."""
        token = None
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


def _check_is_store(address: Address) -> None:
    """Check that a file which the user has not named is a database of MLflow, or does not exist.

    Opening a database makes MLflow's tables in it.
    """
    file = database_file(address.uri)
    if address.named_by == "user" or file is None or not (file.exists() or file.is_symlink()):
        return
    files.check_no_link(file)
    if "experiments" not in _tables(file) and (lock_file := _lock_of(file)).exists():
        with FileLock(lock_file):  # another process may be making the tables
            pass
    if "experiments" not in _tables(file):
        raise UserError(
            f"{file} is not a database of MLflow, and you have not named it. Name the store"
            f" yourself: {GIVE}."
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


def open_store(address: Address | str) -> Store:
    """Open a store. A database that does not exist is made.

    Args:
        address: Its address; a text is one that the user has named.

    Raises:
        UserError: The user has not named it, and it is not a database of MLflow.
        Exception: The store cannot be used: one of `errors.connection_errors`.
    """
    address = Address(address) if isinstance(address, str) else address
    _check_is_store(address)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # It prints the traceback of an error that it raises too.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    with _exclusive(address.uri):
        client = MlflowClient(tracking_uri=address.uri)
        client.search_experiments(max_results=1)  # makes the tables
    return Store(client, address)


@contextmanager
def settings(values: Mapping[str, str]) -> Iterator[None]:
    """Configure MLflow inside the context.

    Args:
        values: Variables of the environment. One that the user has set keeps its value.
    """
    mine = {name: value for name, value in values.items() if name not in _OF_USER}
    before = {name: os.environ[name] for name in mine if name in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def _exclusive(uri: str) -> Iterator[None]:
    """Prevent other processes from opening the same database inside the context.

    MLflow fails if several processes make a database's tables at once. A server makes its own
    tables, so it needs no lock.
    """
    if urlsplit(uri).scheme in HTTP:
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
            with closing(sqlite3.connect(file, timeout=LOCK_SECONDS)) as connection:
                # In this mode, which the file keeps, readers and a writer do not wait for each
                # other.
                connection.execute("PRAGMA journal_mode=WAL")
        yield
