"""`flbench ui`: MLflow's pages on this machine behind a password, with links to comparisons."""

import base64
import binascii
import hmac
import os
import secrets
import socket
import warnings
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from flbench.core.errors import UserError
from flbench.core.text import HTTP, without_user
from flbench.reports.terminal import print_notes, told
from flbench.tracking import errors, store, view
from flbench.tracking.send import RUN_TAG
from flbench.tracking.store import Address, Store

HOST: Final = "127.0.0.1"
USER: Final = "flbench"
"""User name that is proposed; the server accepts any."""
STOP_SECONDS: Final = 5

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def serve(uri: str | None, port: int, write: Callable[[str], None]) -> None:
    """Serve MLflow's pages until Ctrl-C, and print links and the password of this server.

    If the store is a server, its links are printed, and nothing is served.

    Raises:
        UserError: There is no store yet, it cannot be opened, or the port is taken.
    """
    store.require()
    address = store.address(uri)
    if urlsplit(address.uri).scheme in HTTP:
        write(f"{address.shown} is a server. Its pages:\n")
        # A browser asks for the password by itself.
        _write_links(address, without_user(address.uri), write)
        return
    file = store.database_file(address.uri)
    if file is not None and not file.is_file():
        raise UserError(
            f"{file} does not exist yet. Make it with flbench run, or with flbench sync RUN_DIR."
        )
    # No other process, which would get the password, can listen on the port after this.
    with _listening(port) as listener:
        page, password = f"http://{HOST}:{port}", secrets.token_urlsafe(12)
        with told("opening the store of MLflow", print_notes):
            application = Guarded(_application(address), password)
        write(f"MLflow shows {address.shown}\n")
        with told("reading what the store has", print_notes):
            _write_links(address, page, write)
        write(f"The browser asks for a user name, {USER}, and a password: {password}\n")
        write("Ctrl-C ends it.\n")
        _run(application, listener)


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(
            f"--port {port} cannot be used ({error.strerror}). Choose another one."
        ) from error
    return listener


def _application(address: Address) -> Application:
    """Return MLflow's application on a store, whose address it reads from the environment."""
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": address.uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": address.uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": store.artifact_location(address.uri) or "",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # no further processes
    }
    try:
        store.open_store(address)
    except errors.connection_errors() as error:
        raise UserError(errors.explain(error).sentence(address.shown)) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages of the server
        from mlflow.server.fastapi_app import app
    found: Application = app
    return found


def _run(application: Application, listener: socket.socket) -> None:
    """Serve an application on a socket until Ctrl-C or SIGTERM."""
    import uvicorn

    config = uvicorn.Config(
        application, log_level="critical", timeout_graceful_shutdown=STOP_SECONDS, lifespan="off"
    )
    try:
        uvicorn.Server(config).run([listener])
    except KeyboardInterrupt:
        return


def links(to: Store) -> list[tuple[str, str]]:
    """Return links to useful pages, and set the views that they need; see `flbench.tracking.view`.

    For each experiment, the most recently changed first: its plain runs; its latest comparison or
    study, with its methods; the trials of the latest study.

    Returns:
        Pairs of a title and the address without the host.
    """
    found = []
    for experiment in to.client.search_experiments(order_by=["last_update_time DESC"]):
        number, name = experiment.experiment_id, experiment.name

        def latest(*kinds: str, number: str = number) -> list[Any]:
            found = (one for kind in kinds for one in to.runs(number, f"tags.kind = '{kind}'"))
            own = [one for one in found if RUN_TAG in one.data.tags]
            return sorted(own, key=lambda run: -run.info.start_time)

        def link(title: str, view_name: str, content: str, number: str = number) -> None:
            if len(content) <= view.LONGEST:  # MLflow refuses a longer one
                to.client.set_experiment_tag(number, view.TAG_PREFIX + view_name, content)
            is_of_charts = view_name != view.RUNS
            found.append((title, view.page(number, view_name, charts=is_of_charts)))

        if runs := latest("run"):
            content = view.of_results(
                "tags.kind = 'run'", _names(runs), "accuracy", "algorithm.name"
            )
            link(f"runs of {name}", view.RUNS, content)
        for root in latest("comparison", "study")[:1]:
            key, kind = root.data.tags[RUN_TAG], root.data.tags["kind"]
            page = f"#/experiments/{number}/runs/{root.info.run_id}?{view.TRAINING_PAGE}"
            found.append((f"{kind} {root.info.run_name}", page))
            query = f"tags.kind = 'method' AND tags.`{RUN_TAG}` LIKE '{key}/%'"
            metric = root.data.tags.get("metric", "accuracy")
            content = view.of_results(query, _names(to.runs(number, query)), metric, "method")
            link(f"the methods of {root.info.run_name}", view.METHODS, content)
        for root in latest("study")[:1]:
            key = root.data.tags[RUN_TAG]
            query = f"tags.kind = 'trial' AND tags.`{RUN_TAG}` LIKE '{key}/%'"
            params: dict[str, set[str]] = {}
            for trial in to.runs(number, query):
                method, own = trial.data.tags.get("method", ""), set(trial.data.params)
                params[method] = params.get(method, own) & own
            content = view.of_trials(query, dict(sorted(params.items())))
            link(f"the trials of {root.info.run_name}", view.TRIALS, content)
    return found


def _names(runs: Iterable[Any]) -> set[str]:
    """Return the names of the metrics that runs have."""
    return {name for run in runs for name in run.data.metrics}


def _write_links(address: Address, page: str, write: Callable[[str], None]) -> None:
    """Print the links of a store."""
    try:
        found = links(store.open_store(address))
    except errors.connection_errors() as error:
        raise UserError(errors.explain(error).sentence(address.shown)) from error
    for title, rest in [("all experiments", view.EXPERIMENTS_PAGE), *found]:
        write(f"  {title}: {page.rstrip('/')}/{rest}\n")


class Guarded:
    """An ASGI application that asks for a password (HTTP basic authentication).

    Every user of a machine can connect to its ports. Browsers ask the user once and send the
    password with each request to this port.

    Args:
        inside: The application behind it.
        password: The password. Any user name is accepted.
    """

    def __init__(self, inside: Application, password: str) -> None:
        self._inside, self._password = inside, password.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        kind = scope["type"]
        if kind == "lifespan" or self._is_authorized(scope):
            await self._inside(scope, receive, send)
        elif kind == "http":
            text = b"Give the password that `flbench ui` printed; any user name is accepted.\n"
            headers = [
                (b"www-authenticate", b'Basic realm="flbench ui", charset="UTF-8"'),
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
        with suppress(binascii.Error, ValueError):
            _, colon, password = base64.b64decode(content.strip(), validate=True).partition(b":")
            is_same = hmac.compare_digest(password, self._password)
            return method.lower() == b"basic" and bool(colon) and is_same
        return False
