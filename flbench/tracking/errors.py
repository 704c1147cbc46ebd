"""Why a store of MLflow did not take something: not reached, or reached with an error.

MLflow, SQLAlchemy, requests and the clients of file stores raise exceptions of their own.
"""

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from flbench.core.errors import shortened
from flbench.core.text import one_line

LONGEST: Final = 200  # characters of a reason
_NOT_REACHED: Final = {
    "Connection refused": "connection refused",
    "imed out": "no answer in time",
    "imeout on": "no answer in time",
    "ame or service not known": "unknown host",
    "NameResolutionError": "unknown host",
    "failure in name resolution": "unknown host",
    "No route to host": "no route to the host",
    "Network is unreachable": "the network is unreachable",
    "Could not connect to the endpoint URL": "no connection to the store of its files",
    "onnection was closed": "the connection was closed",
    "closed connection": "the connection was closed",
    "Connection reset": "the connection was closed",
    "Connection aborted": "the connection was closed",
}
_PACKAGES: Final = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""What to install for a module whose package has another name."""
_PASSING_TEXTS: Final = ("is locked", "database system is starting up")
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_CURES: Final = {
    401: "Give user and password: $MLFLOW_TRACKING_USERNAME and $MLFLOW_TRACKING_PASSWORD",
    403: "Check the user's permissions and the credentials",
    404: "Check the address: MLflow may have another path or port there",
    413: "Raise the largest size of a request in the server or its proxy",
    507: "Make room on the disk of the server",
}
_STATUS: Final = re.compile(
    r"too many (?P<a>\d{3}) error responses|failed with error code (?P<b>\d{3}) "
    r"|^(?P<c>[45]\d\d) (?:Client|Server) Error"
)
_OF_SQL: Final = re.compile(r"\s*(\[SQL: |\(Background on this error|Response body: )")


@dataclass(frozen=True)
class Trouble:
    """Why a store did not take something.

    Attributes:
        reason: The reason, without a full stop.
        cure: What the user can do, as a sentence without its full stop.
        is_reached: Whether the store has answered or was opened.
        is_passing: Whether the same may succeed seconds later.
    """

    reason: str
    cure: str = "Look at the log of the server, or give another --uri"
    is_reached: bool = True
    is_passing: bool = False

    def sentence(self, shown: str) -> str:
        """Return the reason and the cure.

        Args:
            shown: Address of the store without its secrets.
        """
        verb = "cannot be used" if self.is_reached else "was not reached"
        return f"MLflow at {shown} {verb} ({self.reason}). {self.cure}."


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
    if status := next(filter(None, map(_status, chain)), None):
        try:
            reason = f"it answers {status}, {HTTPStatus(status).phrase}"
        except ValueError:
            reason = f"it answers {status}"
        if any(isinstance(getattr(one, "response", None), dict) for one in chain):
            reason = _first_line(error)  # of a store of files, which says more than its status
        is_passing = status in _PASSING
        cure = _CURES.get(status, "Try again later" if is_passing else Trouble.cure)
        return Trouble(reason, cure, is_passing=is_passing)
    text = "\n".join(map(str, chain))
    if reason := next((words for said, words in _NOT_REACHED.items() if said in text), ""):
        cure = "Start it, or correct its address (--uri ADDRESS)"
        return Trouble(reason, cure, is_reached=False, is_passing=True)
    for one in chain:
        if isinstance(one, ModuleNotFoundError) and one.name:
            name = one.name.partition(".")[0]
            reason = f"the Python module `{name}`, which this store needs, is not installed"
            return Trouble(reason, f"Install it: pip install {_PACKAGES.get(name, name)}")
    is_passing = any(said in text for said in _PASSING_TEXTS)
    return Trouble(_first_line(error), is_passing=is_passing)


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


def _first_line(error: BaseException) -> str:
    """Return what an exception says, without statements of SQL and pages of a server."""
    said = re.sub(r"^\([\w.]+\) ", "", _OF_SQL.split(str(error).strip())[0])
    return shortened(one_line(said), LONGEST).rstrip(".") or type(error).__name__
