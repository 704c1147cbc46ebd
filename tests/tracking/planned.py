"""A server of MLflow in a thread of the tests, which fails by plan.

It is MLflow's own application on a database of SQLite, with served artifacts. A plan decides for
each request whether the application gets it.
"""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flbench.tracking import store as stores

Plan = Callable[[str, str], int | None]
"""Gets method and path of a request, and returns a status of HTTP instead of an answer, or None."""


class PlannedServer:
    """The server.

    Attributes:
        uri: Its address.
        plan: The plan; by default every request is answered.
        requests: Method and path of each request.
    """

    def __init__(self) -> None:
        self.uri = ""
        self.plan: Plan = lambda method, path: None
        self.requests: list[tuple[str, str]] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        """Answer a request, as an application of WSGI."""
        from mlflow.server import app

        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        status = self.plan(method, path)
        if status is None:
            return app(environ, start)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        page = b"<html>" + b"x" * 500 + b"</html>"
        start(f"{status} planned", [("Content-Type", "text/html")])
        return [page]


@contextmanager
def planned_server(uri: str, folder: Path, port: int = 0) -> Iterator[PlannedServer]:
    """Serve a database, whose artifacts lie in a folder, at a port; 0 for any.

    MLflow's application has one store for each process.
    """
    variables = {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages of the server
        from mlflow.server import fastapi_app, handlers  # noqa: F401  # imported by a request
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    handlers._tracking_store = handlers._artifact_repo = None
    planned = PlannedServer()
    server = make_server("127.0.0.1", port, planned, threaded=True)
    planned.uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with stores.settings({stores.TIMEOUT_VARIABLE: "60"}):
            stores.open_store(planned.uri)  # the first answer takes seconds
        yield planned
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        handlers._tracking_store = handlers._artifact_repo = None
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
