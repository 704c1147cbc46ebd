"""MLflow's pages on this machine, with links to what is worth comparing."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from flbench.core.errors import RunError, UserError
from flbench.tracking import mlflow_store, mlflow_view
from flbench.tracking.mirror_study import STUDY
from flbench.tracking.mlflow_store import Store

HOST: Final = "127.0.0.1"
START: Final = 120.0  # seconds that the server may take
STOP: Final = 10.0
MOST: Final = 40  # runs of one comparison
LIGHT: Final = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # 2 processes instead of 10
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def serve(uri: str | None, port: int, say: Callable[[str], None]) -> None:
    """Serve the pages until Ctrl-C; of a store that is a server, only say its address.

    Raises: UserError if there is no store yet, or the port is taken.
    """
    mlflow_store.require()
    address = mlflow_store.address(uri)
    if urlsplit(address).scheme in ("http", "https"):
        say(f"{address} is a server. Its pages:\n")
        _links(address, address, say)
        return
    file = mlflow_store.database(address)
    if file is not None and not file.is_file():
        raise UserError(f"{file} is not there yet. Make it: flbench run, or flbench sync RUN_DIR.")
    _refuse_taken(port)
    try:
        mlflow_store.open_store(address)
    except mlflow_store.troubles() as error:
        raise UserError(f"{address} cannot be opened ({mlflow_store.reason(error)}).") from error
    for sign in (signal.SIGINT, signal.SIGTERM):  # a shell may have told a command to ignore Ctrl-C
        signal.signal(sign, signal.default_int_handler)
    server = _start(address, port)
    try:
        page = f"http://{HOST}:{port}"
        _wait(server, page)
        say(f"MLflow shows {address}\n")
        _links(address, page, say)
        say("Ctrl-C ends it.\n")
        server.wait()
        raise RunError("MLflow's server has ended by itself. The port may be in use by another.")
    except KeyboardInterrupt:
        return
    finally:
        _stop(server)


def links(store: Store) -> list[tuple[str, str]]:
    """Return what is worth a look: (title, the part of an address after the host).

    Of each experiment, the newest first: its runs, and the latest one of each method compared; its
    latest study as a tree, its methods as charts, the trials of each method compared.
    """
    found = []
    for experiment in store.client.search_experiments(order_by=["last_update_time DESC"]):
        number, name = experiment.experiment_id, experiment.name
        order = ["attributes.start_time DESC"]
        plain = store.client.search_runs(
            [number], "tags.kind = 'run' AND attributes.status = 'FINISHED'", order_by=order
        )
        if plain:
            found.append((f"runs of {name}", mlflow_view.page(number, mlflow_view.RUNS)))
        latest = {run.data.tags.get("algorithm"): run for run in reversed(plain)}
        if len(latest) > 1:
            title = f"the latest run of each method on {name}"
            found.append((title, _comparison(latest.values(), number)))
        studies = store.client.search_runs([number], "tags.kind = 'study'", order_by=order)
        if studies:
            found += _of_study(store, number, studies[0].data.tags[STUDY])
    return found


def _of_study(store: Store, number: str, study: str) -> list[tuple[str, str]]:
    """Return the addresses of a study."""
    found = [
        (f"study {study}", mlflow_view.page(number, study)),
        ("its methods", mlflow_view.page(number, f"{study}-methods", charts=True)),
    ]
    trials: dict[str, list[Any]] = {}
    for run in store.runs(number, STUDY, study):
        if run.data.tags.get("kind") == "trial":
            trials.setdefault(run.data.tags["algorithm"], []).append(run)
    for method, runs in sorted(trials.items()):
        if len(runs) > 1:
            found.append((f"its trials of {method}", _comparison(runs, number)))
    return found


def _comparison(runs: Iterable[Any], number: str) -> str:
    return mlflow_view.comparison([run.info.run_id for run in runs][:MOST], number)


def _links(address: str, page: str, say: Callable[[str], None]) -> None:
    try:
        found = links(mlflow_store.open_store(address))
    except mlflow_store.troubles() as error:
        reason = mlflow_store.reason(error)
        raise UserError(f"MLflow at {address} was not reached ({reason}).") from error
    say(f"  {page}\n")
    for title, rest in found:
        say(f"  {title}: {page.rstrip('/')}/{rest}\n")


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"--port {port} cannot be used ({error.strerror}). Choose another one."
            ) from error


def _start(address: str, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", HOST, "--port", str(port), "--backend-store-uri", address]
    place = mlflow_store.artifacts(address)
    if place is not None:
        command += ["--default-artifact-root", place]
    return subprocess.Popen(
        command,
        env={**os.environ, **LIGHT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C comes here first, and all of its processes are ended
    )


def _wait(server: "subprocess.Popen[bytes]", page: str) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + START
    while time.monotonic() < end and server.poll() is None:
        try:
            with urlopen(f"{page}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.2)
    raise RunError("MLflow's server does not start. `python -m mlflow server` says why.")


def _stop(server: "subprocess.Popen[Any]") -> None:
    """End the server with all of its processes."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, sign)
        except ProcessLookupError:
            return
        try:
            server.wait(STOP)
        except subprocess.TimeoutExpired:
            continue
