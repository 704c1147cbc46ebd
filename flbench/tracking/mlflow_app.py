"""MLflow's pages behind a password: the application that the server of `flbench ui` runs.

Every user of a machine can connect to its ports. MLflow's own application for passwords keeps
accounts in a database and needs further packages.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

NAME: Final = "flbench"
"""Name under which MLflow's command line finds this application."""
PASSWORD_VARIABLE: Final = "FLBENCH_UI_PASSWORD"

PROOF: Final = "flbench-ui"
"""Header of an answer to a request without the password, by which one who knows the password
recognizes this server."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def register(folder: Path) -> None:
    """Write the files by which a process of Python that searches a folder finds the application.

    MLflow takes applications from the entry points of installed packages.

    Args:
        folder: An existing folder for $PYTHONPATH.
    """
    about = folder / "flbench_ui-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flbench-ui\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[mlflow.app]\n{NAME} = {__name__}:create\n")


def proof(password: str) -> str:
    """Return the value of the header `PROOF`: a hash of the password, which is random."""
    return hashlib.sha256(f"{NAME} {password}".encode()).hexdigest()


def create() -> Application:
    """Return MLflow's application behind the password of $FLBENCH_UI_PASSWORD."""
    from mlflow.server.fastapi_app import app

    return Guarded(app, os.environ.pop(PASSWORD_VARIABLE))


class Guarded:
    """An ASGI application that asks for a password (HTTP basic authentication).

    Browsers ask the user once and send the password with each request to this port.

    Args:
        inside: The application behind it.
        password: The password. Any user name is accepted.
    """

    def __init__(self, inside: Application, password: str) -> None:
        self._inside, self._password = inside, password.encode()
        self._proof = proof(password).encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        kind = scope["type"]
        if kind == "lifespan" or self._is_authorized(scope):
            await self._inside(scope, receive, send)
        elif kind == "http":
            text = b"Give the password that `flbench ui` printed; any user name is accepted.\n"
            headers = [
                (b"www-authenticate", b'Basic realm="flbench ui", charset="UTF-8"'),
                (PROOF.encode(), self._proof),
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(text)).encode()),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": text})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _is_authorized(self, scope: Message) -> bool:
        """Return whether a request has the password, once."""
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(given) != 1:
            return False
        method, _, content = given[0].strip().partition(b" ")
        if method.lower() != b"basic":
            return False
        try:
            decoded = base64.b64decode(content.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        _, colon, password = decoded.partition(b":")
        return bool(colon) and hmac.compare_digest(password, self._password)
