"""Why a store of MLflow did not take something: not reached, or reached with an error.

MLflow, SQLAlchemy, requests and the clients of file stores raise exceptions of their own.
"""

import re
import sqlite3
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal

from flbench.core.errors import shortened
from flbench.core.text import one_line

LONGEST: Final = 200  # characters of a reason
_AWAY: Final = re.compile(
    r"connection refused|timed out|timeout on|name or service not known|name ?resolution|no route"
    r" to host|network is unreachable|could not connect to the endpoint url|closed connection"
    r"|connection (was closed|reset|aborted)",
    re.IGNORECASE,
)
_BUSY: Final = re.compile("is locked|database system is starting up")
_BUSY_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_STATUS: Final = re.compile(
    r"too many (\d{3}) error responses|failed with error code (\d{3}) "
    r"|^([45]\d\d) (?:Client|Server) Error"
)
_OF_SQL: Final = re.compile(r"\s*(\[SQL: |\(Background on this error|Response body: )")


@dataclass(frozen=True)
class Trouble:
    """Why a store did not take something.

    Attributes:
        reason: The reason, without a full stop.
        kind: `away`: the store was not reached; `busy`: the same may succeed seconds later;
            `refused`: it will not.
        cure: What the user can do, as a sentence without its full stop.
    """

    reason: str
    kind: Literal["away", "busy", "refused"] = "refused"
    cure: str = "Look at the log of the server, or give another --uri"

    def sentence(self, shown: str) -> str:
        """Return the reason and the cure."""
        verb = "was not reached" if self.kind == "away" else "cannot be used"
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
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or found.__context__
    first = re.sub(r"^\([\w.]+\) ", "", _OF_SQL.split(str(error).strip())[0])
    first = shortened(one_line(first), LONGEST).rstrip(".") or type(error).__name__
    if status := next(filter(None, map(_status, chain)), None):
        known = {one.value: one.phrase for one in HTTPStatus}
        reason = f"it answers {status}, {known.get(status, 'an unknown status')}"
        if any(isinstance(getattr(one, "response", None), dict) for one in chain):
            reason = first  # of a store of files, which says more than its status
        if status in (401, 403):
            cure = "Check user, password ($MLFLOW_TRACKING_USERNAME, ...PASSWORD) and permissions"
            return Trouble(reason, cure=cure)
        if status in _BUSY_STATUS:
            return Trouble(reason, "busy", "Try again later")
        return Trouble(reason)
    text = "\n".join(map(str, chain))
    if away := _AWAY.search(text):
        return Trouble(away[0].lower(), "away", "Start it, or correct its address (--uri ADDRESS)")
    if any(isinstance(one, ModuleNotFoundError) for one in chain):
        return Trouble(first, cure="Install the package of this module, which the store needs")
    return Trouble(first, "busy" if _BUSY.search(text) else "refused")


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
