"""`flbench ui`: MLflow's pages on this machine, with links to useful comparisons."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from flbench.core import startup
from flbench.core.errors import RunError, UserError
from flbench.core.text import HTTP, redact_address, without_user
from flbench.reports.terminal import print_notes, told
from flbench.tracking import mlflow_app, mlflow_errors, mlflow_store, mlflow_view
from flbench.tracking.mirror_comparison import COMPARISON_TAG
from flbench.tracking.mirror_study import STUDY_TAG
from flbench.tracking.mlflow_store import Store

HOST: Final = "127.0.0.1"
USER: Final = "flbench"
"""User name that is proposed; the server accepts any."""
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
SERVER_ENVIRONMENT: Final = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # 2 processes instead of 10
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "UVICORN_APP_DIR": os.devnull,  # uvicorn searches this first, by default the current folder
}


def serve(uri: str | None, port: int, write: Callable[[str], None]) -> None:
    """Serve MLflow's pages until Ctrl-C, and print links and the password of this server.

    If the store is a server, its links are printed, and nothing is served.

    Args:
        uri: Address of the store; None for the default.
        port: Port on this machine.
        write: Prints a text.

    Raises:
        UserError: There is no store yet, it cannot be opened, or the port is taken.
        RunError: The server does not start, or ends by itself.
    """
    mlflow_store.require()
    address = mlflow_store.address(uri)
    shown = redact_address(address)
    if urlsplit(address).scheme in HTTP:
        write(f"{shown} is a server. Its pages:\n")
        # A browser asks for the password by itself.
        _write_links(address, without_user(address), write)
        return
    file = mlflow_store.database_file(address)
    if file is not None and not file.is_file():
        raise UserError(
            f"{file} does not exist yet. Make it with flbench run, or with flbench sync RUN_DIR."
        )
    _refuse_taken_port(port)
    try:
        with told("opening the store of MLflow", print_notes):
            mlflow_store.open_store(address, mlflow_store.who_names(uri, "user"))
    except mlflow_errors.connection_errors() as error:
        raise UserError(mlflow_errors.explain(error).sentence(shown)) from error
    # A shell makes a command that it starts in the background ignore Ctrl-C.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler)
    password = secrets.token_urlsafe(12)
    with _plugin() as folder:
        server = _start_server(address, port, (folder, password))
        try:
            page = f"http://{HOST}:{port}"
            # Until it answers, the port may belong to another user, who must not get the password.
            with told(f"MLflow's server is starting at {page}", print_notes):
                _wait_until_ready(server, page, mlflow_app.proof(password))
            write(f"MLflow shows {shown}\n")
            with told("reading what the store has", print_notes):
                _write_links(address, page, write)
            write(f"The browser asks for a user name, {USER}, and a password: {password}\n")
            write("Ctrl-C ends it.\n")
            server.wait()
            raise RunError(
                "MLflow's server ended by itself. Another process may use its port: choose another"
                " with --port N."
            )
        except KeyboardInterrupt:
            return
        finally:
            _stop_server(server)


def links(store: Store) -> list[tuple[str, str]]:
    """Return links to useful pages, and set the views that two of them need.

    For each experiment, the most recently changed first: its runs; a comparison of the latest run
    of each method; its latest study as a tree, the study's methods as charts, and charts of each
    method's trials; its latest comparison as a tree, and the comparison's methods and cells.

    Returns:
        Pairs of a title and the address without the host.
    """
    found = []
    for experiment in store.client.search_experiments(order_by=["last_update_time DESC"]):
        experiment_id, name = experiment.experiment_id, experiment.name
        newest_first = ["attributes.start_time DESC"]
        plain_runs = store.client.search_runs(
            [experiment_id],
            "tags.kind = 'run' AND attributes.status = 'FINISHED'",
            order_by=newest_first,
        )
        if plain_runs:
            # The experiment got this view before its runs were known.
            names = {name for run in plain_runs for name in run.data.metrics}
            view = mlflow_view.runs_view(names)
            store.set_view(experiment_id, mlflow_view.RUNS_VIEW, view)
            page = mlflow_view.page(experiment_id, mlflow_view.RUNS_VIEW)
            found.append((f"runs of {name}", page))
        latest = {run.data.tags.get("algorithm"): run for run in reversed(plain_runs)}
        if len(latest) > 1:
            view = mlflow_view.latest_view(list(latest.values()))
            store.set_view(experiment_id, mlflow_view.LATEST_VIEW, view)
            page = mlflow_view.page(experiment_id, mlflow_view.LATEST_VIEW, charts=True)
            found.append((f"the latest run of each method on {name}", page))
        studies = store.client.search_runs(
            [experiment_id], "tags.kind = 'study'", order_by=newest_first
        )
        if studies:
            found += _study_links(store, experiment_id, studies[0].data.tags[STUDY_TAG])
        comparisons = store.client.search_runs(
            [experiment_id], "tags.kind = 'comparison'", order_by=newest_first
        )
        if comparisons:
            found += _comparison_links(experiment_id, comparisons[0].data.tags[COMPARISON_TAG])
    return found


def _comparison_links(experiment: str, comparison: str) -> list[tuple[str, str]]:
    """Return the links of a comparison."""

    def page(part: str = "", *, charts: bool) -> str:
        view = mlflow_view.view_name(comparison, part)
        return mlflow_view.page(experiment, view, charts=charts)

    return [
        (f"comparison {comparison}", page(charts=False)),
        ("its methods", page("methods", charts=True)),
        ("its cells", page("cells", charts=False)),
    ]


def _study_links(store: Store, experiment: str, study: str) -> list[tuple[str, str]]:
    """Return the links of a study."""

    def page(part: str = "", *, charts: bool = True) -> str:
        return mlflow_view.page(experiment, mlflow_view.view_name(study, part), charts=charts)

    runs = list(store.runs(experiment, STUDY_TAG, study))
    trials = Counter(
        run.data.tags["algorithm"] for run in runs if run.data.tags.get("kind") == "trial"
    )
    return [
        (f"study {study}", page(charts=False)),
        ("its methods", page("methods")),
        *((f"its trials of {name}", page(name)) for name in sorted(trials) if trials[name] > 1),
    ]


def _write_links(address: str, page: str, write: Callable[[str], None]) -> None:
    """Print the links of a store.

    Args:
        address: Address of the store.
        page: Address of MLflow's pages.
        write: Prints a text.
    """
    try:
        found = links(mlflow_store.open_store(address))
    except mlflow_errors.connection_errors() as error:
        shown = redact_address(address)
        raise UserError(mlflow_errors.explain(error).sentence(shown)) from error
    for title, rest in [("all experiments", mlflow_view.EXPERIMENTS_PAGE), *found]:
        write(f"  {title}: {page.rstrip('/')}/{rest}\n")


def _refuse_taken_port(port: int) -> None:
    """Raise a UserError if a port cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"--port {port} cannot be used ({error.strerror}). Choose another one."
            ) from error


@contextmanager
def _plugin() -> Iterator[Path]:
    """Yield a private folder with the files by which MLflow finds `flbench.tracking.mlflow_app`."""
    with TemporaryDirectory(prefix="flbench-") as folder:
        mlflow_app.register(Path(folder))
        yield Path(folder)


def _start_server(
    address: str, port: int, guard: tuple[Path, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start MLflow's server on a store, whose address is not visible in the command line.

    Args:
        address: Address of the store.
        port: Port on this machine.
        guard: The folder of `_plugin` and the password that the server asks for; None for a server
            that every user of this machine can call.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", HOST, "--port", str(port)]
    artifacts = mlflow_store.artifact_location(address)
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts]
    environment = SERVER_ENVIRONMENT | {
        "MLFLOW_BACKEND_STORE_URI": mlflow_store.for_mlflow(address)
    }
    if guard is not None:
        folder, password = guard
        command += ["--app-name", mlflow_app.NAME]
        paths = filter(None, [os.environ.get("PYTHONPATH"), str(folder)])
        environment |= {
            mlflow_app.PASSWORD_VARIABLE: password,
            "PYTHONPATH": os.pathsep.join(paths),
        }
    return subprocess.Popen(
        command,
        env=startup.environment(**environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches only this process, which then stops the server
    )


def _wait_until_ready(server: "subprocess.Popen[bytes]", page: str, proof: str | None) -> None:
    """Wait until the server answers, and not another process that has taken its port.

    Args:
        server: The server.
        page: Address of its pages.
        proof: What it answers without the password; see `mlflow_app.proof`. None for a server that
            has no password.

    Raises:
        RunError: The server has ended, or does not answer in time.
    """
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urlopen(page, timeout=2):
                if proof is None:
                    return
        except HTTPError as error:
            if proof is not None and error.headers.get(mlflow_app.PROOF) == proof:
                return
        except (OSError, HTTPException):  # a server of others may not speak HTTP
            pass
        time.sleep(0.2)
    raise RunError(
        "MLflow's server does not start. Another process may use its port: choose another with"
        " --port N. Otherwise `python -m mlflow server` prints the reason."
    )


def _stop_server(server: "subprocess.Popen[Any]") -> None:
    """End the server with all of its processes."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, signal_number)
        except ProcessLookupError:
            return
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
