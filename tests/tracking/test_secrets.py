"""User and password of an address: in no file, on no terminal, in no command line."""

import socket
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from flbench.cli import app
from flbench.config.schema import TrackingConfig
from flbench.core.errors import ConfigError
from flbench.tracking import mirror, mlflow_store, mlflow_ui
from tests.support import SMALL, interrupted_run

pytestmark = pytest.mark.mlflow

SECRET = "s3cret"
RUN = [*SMALL, "algorithm=fedavg", "tracking.mlflow=auto"]


@pytest.fixture
def address():
    """A server that refuses connections at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://ann:{SECRET}@127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch):
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


def shown(address: str) -> str:
    return address.replace(f"ann:{SECRET}", "***")


def files_with_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if SECRET.encode() in path.read_bytes()]


def process_file(process: subprocess.Popen[bytes], name: str) -> str:
    """Return a file of /proc, as other users of the machine read it."""
    return Path(f"/proc/{process.pid}/{name}").read_bytes().decode()


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize("given", ["override", "file", "environment"])
def test_secret_of_a_run_is_written_and_printed_nowhere(
    address, given, tmp_path, monkeypatch, capsys
):
    runs, items = tmp_path / "runs", []
    if given == "override":
        items = [f"tracking.uri={address}"]
    elif given == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    else:
        (tmp_path / "mine.yaml").write_text(f"tracking: {{uri: '{address}'}}\n")
        items = ["--config", str(tmp_path / "mine.yaml")]

    code = app.main(["run", *RUN, f"output.dir={runs}", *items])

    said = capsys.readouterr()
    [folder] = runs.glob("*/*")
    assert code == 0
    assert (folder / "report.html").exists()
    assert (folder / mirror.LOG).read_text()
    assert not files_with_secret(runs)
    assert SECRET not in said.out + said.err
    assert f"MLflow at {shown(address)} was not reached (connection refused)" in said.err


@pytest.mark.slow
def test_secret_is_in_no_command_line(address, tmp_path):
    """And the mirror has it: it calls this server."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(60)
        uri = f"http://ann:{SECRET}@127.0.0.1:{server.getsockname()[1]}"
        run = tmp_path / "run"
        run.mkdir()
        (run / "config.yaml").write_text(
            "algorithm: {name: fedavg}\ndata: {name: digits}\nmodel: {name: mlp}\nseed: 0\n"
            "partition: {scheme: iid}\n"
        )
        mirrored = mirror.start(run, TrackingConfig(uri=uri))
        try:
            connection, _ = server.accept()
            line = process_file(mirrored.process, "cmdline")
            with connection:
                request = connection.recv(65536).decode()
        finally:
            mirrored.process.kill()
            mirrored.process.wait()
            mirrored.process.stdin.close()

    assert SECRET not in line
    assert "flbench.tracking.follow" in line
    assert SECRET not in repr(mirrored)
    assert "Authorization: Basic YW5uOnMzY3JldA==" in request  # ann:s3cret


def test_secret_is_not_in_the_command_line_of_a_server(tmp_path):
    address = f"sqlite:///{tmp_path}/x.db?password={SECRET}"
    process = mlflow_ui._start_server(address, 1)
    try:
        while not (line := process_file(process, "cmdline")):  # before it has begun
            assert process.poll() is None
        environment = process_file(process, "environ")
    finally:
        mlflow_ui._stop_server(process)

    assert SECRET not in line
    assert f"MLFLOW_BACKEND_STORE_URI={address}" in environment.split("\0")


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_resumed_run_takes_the_secret_from_the_environment(address, tmp_path, monkeypatch, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_store, "installed", lambda: False)
        folder = interrupted_run(tmp_path, f"tracking.uri={address}", "tracking.mlflow=auto")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)

    code = app.main(["run", "--resume", str(folder)])

    said = capsys.readouterr().err
    assert code == 0
    assert f"MLflow at {shown(address)} was not reached (connection refused)" in said
    assert not files_with_secret(tmp_path)


@pytest.mark.slow
def test_resumed_run_without_the_secret_asks_for_it_and_trains(address, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_store, "installed", lambda: False)
        folder = interrupted_run(tmp_path, f"tracking.uri={address}", "tracking.mlflow=auto")

    refused = app.main(["run", "--resume", str(folder), "tracking.mlflow=true"])
    refusal = capsys.readouterr().err
    code = app.main(["run", "--resume", str(folder)])

    said = capsys.readouterr().err
    assert refused == 2
    assert code == 0
    assert (folder / "summary.json").exists()
    for words in (f"the password of {shown(address)} is not stored", "$MLFLOW_TRACKING_URI"):
        assert words in refusal
        assert words in said
    assert f"flbench sync {folder} --uri ADDRESS" in said
    assert app.main(["sync", str(folder)]) == 2
    assert f"the password of {shown(address)} is not stored" in capsys.readouterr().err
    assert app.main(["sync", str(folder), "--uri", address]) == 2
    assert f"MLflow at {shown(address)} was not reached" in capsys.readouterr().err


def test_address_without_its_secret_is_completed_from_the_environment(monkeypatch):
    http, database = "http://***@host/a", "postgresql+psycopg2://***@host/db"
    for uri in (http, database):
        with pytest.raises(ConfigError, match=r"\$MLFLOW_TRACKING_URI"):
            mlflow_store.address(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@other/a")
    with pytest.raises(ConfigError):
        mlflow_store.address(http)  # another server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@host/a")
    assert mlflow_store.address(http) == "http://ann:s3cret@host/a"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://ann:s3cret@host/db")
    assert mlflow_store.address(database) == "postgresql+psycopg2://ann:s3cret@host/db"


def test_credentials_of_mlflow_complete_an_address_of_http_alone(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    with pytest.raises(ConfigError):
        mlflow_store.address("http://***@host/a")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)

    assert mlflow_store.address("http://***@host/a") == "http://host/a"
    for uri in ("postgresql+psycopg2://***@host/db", "http://***@host/a?token=***"):
        with pytest.raises(ConfigError):
            mlflow_store.address(uri)


def test_messages_of_errors_hide_secrets():
    error = RuntimeError(f"cannot connect to postgresql://ann:{SECRET}@host/db\x1b[31m")

    assert mlflow_store.reason(error) == r"cannot connect to postgresql://***@host/db\x1b[31m"


def test_links_to_a_server_have_no_secret(address, monkeypatch):
    said = []
    monkeypatch.setattr(mlflow_store, "open_store", lambda uri: None)
    monkeypatch.setattr(mlflow_ui, "links", lambda store: [("runs", "#/x")])

    mlflow_ui.serve(address, 1, said.append)

    text = "".join(said)
    assert SECRET not in text
    assert f"{address.replace(f'ann:{SECRET}@', '')}/#/x" in text
