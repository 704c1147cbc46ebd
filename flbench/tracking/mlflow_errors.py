"""Why a store of MLflow did not take something: not reached, or reached with an error.

MLflow, SQLAlchemy, requests and the clients of file stores raise exceptions of their own. `explain`
finds the reason in all of them, and what a user can do about it.
"""

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from flbench.core.errors import MAX_MESSAGE, shortened
from flbench.core.text import one_line

LONGEST: Final = 200  # characters of a reason that is not known here
WRITABLE: Final = "Its folder must exist and be writable; or give another --uri"
_AWAY: Final = "Start it, or give another --uri"
_NOT_REACHED: Final = (
    ("Connection refused", "connection refused"),
    ("timed out", "no answer in time"),
    ("Name or service not known", "unknown host"),
    ("Temporary failure in name resolution", "unknown host"),
    ("NameResolutionError", "unknown host"),
    ("No route to host", "no route to the host"),
    ("Network is unreachable", "the network is unreachable"),
    ("closed connection without response", "the connection was closed"),
    ("Connection reset", "the connection was closed"),
    ("Connection aborted", "the connection was closed"),
    ("Connection was closed before", "the connection was closed"),
)
_HANGS: Final = "Start it; if it runs, it hangs, or the store of its files does: look at its log"
_NO_FILES: Final = (
    ("Could not connect to the endpoint URL", "no connection to the store of its files"),
    ("Read timeout on endpoint URL", "the store of its files does not answer in time"),
    ("Connect timeout on endpoint URL", "the store of its files does not answer in time"),
)
_FILES: Final = "Start the store of the files, or correct its address ($MLFLOW_S3_ENDPOINT_URL)"
_ROOM: Final = "Make room on its disk"
_NAMED: Final = "Correct user, password and database in the address"
_CURES_OF_TEXTS: Final = (
    ("NoSuchBucket", "Make the bucket, or correct the server's --default-artifact-root"),
    ("database or disk is full", _ROOM),
    ("No space left on device", _ROOM),
    ("disk image is malformed", "Restore the database from a copy, or give another --uri"),
    ("authentication failed", _NAMED),
    ("Access denied for user", _NAMED),
    ('" does not exist', _NAMED),
    ("permission denied for", "Give the user of the address the rights to its tables"),
    ("certificate verify failed", "Name its certificate in $MLFLOW_TRACKING_SERVER_CERT_PATH"),
)
"""Cures for errors that say their reason themselves."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_CURES: Final = {
    401: "Give user and password: $MLFLOW_TRACKING_USERNAME and $MLFLOW_TRACKING_PASSWORD",
    403: "Check the user's permissions, $MLFLOW_TRACKING_USERNAME and $MLFLOW_TRACKING_PASSWORD",
    404: "Check the address: MLflow may have another path or port there",
    413: "Raise the largest size of a request in the server or its proxy (nginx:"
    " client_max_body_size)",
    507: "Make room on the disk of the server",
}
_CREDENTIALS: Final = "Check the credentials of the store of the files, and what they permit"
_NO_CREDENTIALS: Final = (
    "Give them to the process that sends the files: $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY"
    " for S3"
)
_LATER: Final = "Try again later, and look at the log of the server"
_PACKAGES: Final = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "google": "google-cloud-storage",
    "azure": "azure-storage-blob azure-identity",
}
"""What to install for a module whose package has another name."""
_STATUS: Final = re.compile(
    r"too many (?P<a>\d{3}) error responses|failed with error code (?P<b>\d{3}) "
    r"|^(?P<c>[45]\d\d) (?:Client|Server) Error"
)
_VERSIONS: Final = re.compile(r"found version (\S+), but expected (\w+)")
_CERTIFICATE: Final = re.compile(r"certificate verify failed: [\w -]+")
_OF_SQL: Final = re.compile(r"\s*(\[SQL: |\(Background on this error|Response body: )")


@dataclass(frozen=True)
class Trouble:
    """Why a store did not take something.

    Attributes:
        reason: The reason, without a full stop.
        cure: What the user can do, as a sentence without its full stop; "" if nothing is known.
        is_reached: Whether the store has answered or was opened.
        is_passing: Whether the same may succeed seconds later.
        is_of_files: Whether MLflow itself has answered, and the store of its files has not.
    """

    reason: str
    cure: str = ""
    is_reached: bool = True
    is_passing: bool = False
    is_of_files: bool = False

    def clause(self, shown: str) -> str:
        """Return the beginning of a sentence.

        Args:
            shown: Address of the store without its secrets.
        """
        verb = "cannot be used" if self.is_reached or self.is_of_files else "was not reached"
        return f"MLflow at {shown} {verb} ({self.reason})"

    def sentence(self, shown: str) -> str:
        """Return the reason and the cure, a line each if they are too long for one message."""
        cure = self.cure.replace("ADDRESS", shown) or "Give another --uri"
        text = f"{self.clause(shown)}. {cure}."
        return text if len(text) <= MAX_MESSAGE else f"{self.clause(shown)}.\n{cure}."


_NEWER: Final = Trouble(
    "a newer version of MLflow has made its tables",
    "Install that version: pip install --upgrade mlflow",
)


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that are raised if a store is unreachable, slow or broken."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError comes from requests; ImportError from a database whose driver is missing; CommandError
    # from the tables of a database that another version of MLflow has made.
    return (MlflowException, SQLAlchemyError, sqlite3.Error, CommandError, OSError, ImportError)


def explain(error: BaseException) -> Trouble:
    """Return why a store did not take something.

    Args:
        error: One of `connection_errors`, or any exception of a client of a file store.
    """
    chain = list(_chain(error))
    text = "\n".join(str(item) for item in chain)
    if status := next(filter(None, map(_status, chain)), None):
        return _answer(status, error)
    for part, words in _NO_FILES:
        if part in text:
            return Trouble(words, _FILES, is_reached=False, is_passing=True, is_of_files=True)
    for part, words in _NOT_REACHED:
        if part in text:
            cure = _HANGS if "Read timed out" in text else _AWAY
            return Trouble(words, cure, is_reached=False, is_passing=True)
    if "database system is starting up" in text:
        return Trouble("its database is starting", "Try again later", is_passing=True)
    if "Unable to locate credentials" in text:
        return Trouble("there are no credentials for the store of the files", _NO_CREDENTIALS)
    if "unsupported URI" in text:
        cure = "Give a server (http://HOST:PORT) or a database (sqlite:///FILE)"
        return Trouble("MLflow has no store of this kind", cure)
    found = _of_module(chain) or _of_database(text) or _of_file(chain) or Trouble(_first(error))
    cure = next((cure for part, cure in _CURES_OF_TEXTS if part in text), found.cure)
    return replace(found, cure=cure)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        seen.append(found)
        yield found
        found = found.__cause__ or found.__context__


def _status(error: BaseException) -> int | None:
    """Return the status of HTTP with which a server has answered; None if it is not known."""
    if match := _STATUS.search(str(error)):
        return int(next(filter(None, match.groups())))
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= HTTPStatus.BAD_REQUEST else None


def _answer(status: int, error: BaseException) -> Trouble:
    """Return the trouble with a server that has answered with a status of HTTP."""
    try:
        phrase = f", {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    reason = f"it answers {status}{phrase}"
    for item in _chain(error):
        if isinstance(getattr(item, "response", None), dict):
            # It is the store of the files, not MLflow, and says more than its status.
            refused = next((cure for part, cure in _CURES_OF_TEXTS if part in str(item)), None)
            return Trouble(
                _first(item),
                _LATER if status in _PASSING else refused or _CREDENTIALS,
                is_passing=status in _PASSING,
            )
    cure = _CURES.get(status, _LATER if status in _PASSING else "Look at the log of the server")
    return Trouble(reason, cure, is_passing=status in _PASSING)


def _of_module(chain: list[BaseException]) -> Trouble | None:
    """Return the trouble with a Python module that is not installed."""
    for error in chain:
        if isinstance(error, ModuleNotFoundError) and error.name:
            name = error.name.partition(".")[0]
            package = _PACKAGES.get(name, name)
            reason = f"the Python module `{name}`, which this store needs, is not installed"
            return Trouble(reason, f"Install it: pip install {package}")
    return None


def _of_database(text: str) -> Trouble | None:
    """Return the trouble with a database."""
    if "database schema" in text and (match := _VERSIONS.search(text)):
        if not _is_earlier(match[1]):
            return _NEWER
        reason = f"its tables have the version {match[1]}, the installed MLflow needs {match[2]}"
        return Trouble(reason, "Make a copy of the database, then: mlflow db upgrade ADDRESS")
    if "Can't locate revision" in text:
        return _NEWER
    if "database is locked" in text or "database table is locked" in text:
        reason = "another process has locked the database"
        return Trouble(reason, "Try again when that process has ended", is_passing=True)
    if "readonly database" in text:
        reason = "the database is read-only"
        return Trouble(reason, "Make its file and folder writable, or give another --uri")
    if "unable to open database file" in text:
        reason = "the file of the database cannot be opened"
        return Trouble(reason, "Make its folder, and files in it, readable and writable")
    if "file is not a database" in text:
        return Trouble("the file is not a database of SQLite", "Give another --uri")
    return None


def _is_earlier(version: str) -> bool:
    """Return whether the installed MLflow knows a version of tables, so that it can change them."""
    from mlflow.store import db_migrations

    return any(
        file.name.startswith(f"{version}_")
        for folder in db_migrations.__path__
        for file in Path(folder, "versions").glob("*.py")
    )


def _of_file(chain: list[BaseException]) -> Trouble | None:
    """Return the trouble with a file or folder of this machine."""
    for error in chain:
        if isinstance(error, OSError) and error.strerror and error.filename:
            reason = f"{error.strerror}: {one_line(str(error.filename))}"
            return Trouble(reason, WRITABLE)
    return None


def _first(error: BaseException) -> str:
    """Return what an exception says, without statements of SQL and pages of a server."""
    if match := _CERTIFICATE.search(str(error)):
        return match[0]
    said = _OF_SQL.split(str(error).strip())[0]
    said = re.sub(r"^\([\w.]+\) ", "", said) or type(error).__name__
    return shortened(one_line(said), LONGEST).rstrip(".")
