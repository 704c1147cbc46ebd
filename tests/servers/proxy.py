"""A proxy of HTTP in threads of the tests, which fails by plan."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final, Literal
from urllib.parse import urlsplit

HOP_BY_HOP: Final = {
    *("connection", "keep-alive", "transfer-encoding", "content-length"),
    *("date", "server"),
}
PATIENCE: Final = 120.0  # seconds that the server behind the proxy may take
TEXT: Final = ("Content-Type", "text/plain")


@dataclass(frozen=True)
class Request:
    """A request that has arrived: its number since the plan was made, and its path."""

    number: int
    path: str


@dataclass(frozen=True)
class Fate:
    """What becomes of a request.

    Attributes:
        status: Status of HTTP that the proxy answers, with the body `page`; None passes the request
            on.
        cut: Whether the connection is cut before the server gets the request, or after it, so that
            only the answer is lost.
        seconds: Delay.
    """

    status: int | None = None
    page: bytes = b"<html>planned</html>"
    cut: Literal["before", "after"] | None = None
    seconds: float = 0.0


Plan = Callable[[Request], Fate]


def passes(request: Request) -> Fate:
    """Pass every request on."""
    return Fate()


class Proxy:
    """A proxy before a server. If it is stopped, its port refuses connections.

    Args:
        target: Address of the server behind it.
        port: Its port on the loopback interface.
    """

    def __init__(self, target: str, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._port, self._target = port, urlsplit(target).netloc
        self._plan: Plan = passes
        self._count = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._handle
                raise AttributeError(name)

            def _handle(self) -> None:
                proxy._count += 1
                path = urlsplit(self.path).path
                fate = proxy._plan(Request(proxy._count, path))
                proxy._carry_out(self, fate)

            def log_message(self, *args: Any) -> None:
                pass

        ThreadingHTTPServer.daemon_threads = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def kill(self) -> None:
        """Stop the proxy; it may be started again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        """Follow a plan inside the context."""
        self._plan, self._count = plan, 0
        try:
            yield
        finally:
            self._plan = passes

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections inside the context."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def _carry_out(self, handler: BaseHTTPRequestHandler, fate: Fate) -> None:
        """Read a request, and answer it as its fate demands."""
        body = _body(handler)
        time.sleep(fate.seconds)
        if fate.status is not None:
            _answer(handler, fate.status, [TEXT], fate.page)
            return
        if fate.cut == "before":
            handler.close_connection = True
            return
        try:
            connection = HTTPConnection(self._target, timeout=PATIENCE)
            connection.putrequest(
                handler.command, handler.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in handler.headers.items():
                if name.lower() not in HOP_BY_HOP | {"expect"}:
                    connection.putheader(name, value)
            if body or handler.command in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            page = answer.read()
            connection.close()
        except (OSError, HTTPException) as error:
            _answer(handler, 502, [TEXT], str(error).encode())
            return
        if fate.cut == "after":
            handler.close_connection = True
            return
        length = answer.getheader("Content-Length")
        _answer(handler, answer.status, answer.getheaders(), page, length)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """Read the body of a request."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass
    return b"".join(parts)


def _answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: list[tuple[str, str]],
    page: bytes,
    length: str | None = None,
) -> None:
    """Answer a request."""
    try:
        handler.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                handler.send_header(name, value)
        is_head = handler.command == "HEAD"
        handler.send_header("Content-Length", length if is_head and length else str(len(page)))
        handler.end_headers()
        if not is_head:
            handler.wfile.write(page)
    except OSError:  # the client has given up
        handler.close_connection = True
