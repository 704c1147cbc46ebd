"""User and password of an address: in no file, on no terminal, in no command line."""

import json
import shutil
import socket
import sqlite3
import subprocess
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from flbench.cli import app
from flbench.comparison.design import Design, LabelledLayer
from flbench.config.schema import TrackingConfig
from flbench.config.sources import Layer, from_overrides
from flbench.core.errors import ConfigError, UserError
from flbench.tracking import errors, mirror, ui
from flbench.tracking import store as stores
from flbench.tracking.send import Sender
from flbench.tracking.store import Address
from flbench.tuning import prepare
from flbench.tuning.request import TuneRequest
from tests.installed import needs
from tests.support import SMALL, interrupted_run

pytestmark = [pytest.mark.mlflow, needs("mlflow")]

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
    assert shown(address) in said.err


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
        mirrored = mirror.Mirror().start(run, TrackingConfig(uri=uri))
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


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_resumed_run_takes_the_secret_from_the_environment_or_trains_without_it(
    address, tmp_path, monkeypatch, capsys
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "installed", lambda: False)
        folder = interrupted_run(tmp_path, f"tracking.uri={address}", "tracking.mlflow=auto")
    known = shutil.copytree(folder, tmp_path / "known")
    said = []

    def flbench(*words):
        code = app.main([*map(str, words)])
        said.append(capsys.readouterr().err)
        return code

    assert flbench("run", "--resume", folder, "tracking.mlflow=true") == 2
    assert flbench("run", "--resume", folder) == 0
    assert flbench("sync", folder) == 2
    assert flbench("sync", folder, "--uri", address) == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert flbench("run", "--resume", known) == 0

    assert (folder / "summary.json").exists()
    assert all(shown(address) in one and SECRET not in one for one in said)
    assert all("$MLFLOW_TRACKING_URI" in one for one in said[:3])
    assert all("connection refused" in one for one in said[3:])
    assert not files_with_secret(tmp_path)


HTTP, DATABASE = "http://***@host/a", "postgresql+psycopg2://***@host/db"
FULL = {uri: uri.replace("***", f"ann:{SECRET}") for uri in (HTTP, DATABASE)}
BOTH = {"USERNAME": "ann", "PASSWORD": SECRET}
OWN = {"URI": "http://host:5000/a", "TOKEN": SECRET}
FOREIGN = (
    *("http://other:5000/a", "https://host:5000/a", "http://***@other/a", "HTTP://OTHER"),
    *("http://ann:x7@other:5000/a", "http://host:5000@other/a", "http://host:5000.other/a"),
    *("http://other#@host:5000/a", "databricks", "databricks://profile", "own-scheme://other"),
    *("postgresql://other/db", "file://other/a"),
    *("sqlite:///a.db?plugin=b", "sqlite+pysqlite:///a.db"),
)
ADDRESSES = [
    # What the environment has, an address, who names it, and the one that is used.
    ({}, HTTP, "user", None),
    ({}, DATABASE, "user", None),
    ({"URI": FULL[HTTP].replace("host", "other")}, HTTP, "user", None),
    ({"URI": FULL[HTTP]}, HTTP, "user", FULL[HTTP]),
    ({"URI": FULL[DATABASE]}, DATABASE, "user", FULL[DATABASE]),
    ({"USERNAME": "ann"}, HTTP, "user", None),
    (BOTH, HTTP, "user", "http://host/a"),
    (BOTH, DATABASE, "user", None),
    (BOTH, "http://***@host/a?token=***", "user", None),
    *((OWN, uri, "folder", None) for uri in FOREIGN),
    *(
        (OWN, f"{start}:5000/a", "folder", OWN["URI"])
        for start in ("HTTP://HOST", "http://a:b@host")
    ),
    (OWN, "http://host:5000/a/", "folder", OWN["URI"]),
    *((OWN, uri, "folder", uri) for uri in ("sqlite:////tmp/a.db", "file:///tmp/a", "mlruns")),
    (OWN, "http://other/a", "user", "http://other/a"),
    ({}, "http://other", "file", "http://other"),
    ({"TOKEN": SECRET}, "http://other", "file", None),
    ({"file": ""}, "http://other", "file", None),
]


@pytest.mark.parametrize(("environment", "uri", "named_by", "used"), ADDRESSES)
def test_address_gets_credentials_only_if_it_is_the_users_own(
    environment, uri, named_by, used, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(stores.FOLDER_VARIABLE, "true")
    for name, value in environment.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    if "file" in environment:
        (tmp_path / ".mlflow").mkdir()
        (tmp_path / ".mlflow" / "credentials").touch()

    if used is None:
        with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI"):
            stores.address(uri, named_by)
    else:
        assert stores.address(uri, named_by).uri == used


def test_messages_of_errors_hide_secrets():
    error = RuntimeError(f"cannot connect to postgresql://ann:{SECRET}@host/db\x1b[31m")

    reason = errors.explain(error).reason
    assert reason == r"cannot connect to postgresql://***@host/db\x1b[31m"


def test_links_to_a_server_have_no_secret(address, monkeypatch):
    said = []
    monkeypatch.setattr(stores, "open_store", lambda uri: None)
    monkeypatch.setattr(ui, "links", lambda store: [("runs", "#/x")])

    ui.serve(address, 1, said.append)

    text = "".join(said)
    assert SECRET not in text
    assert f"{address.replace(f'ann:{SECRET}@', '')}/#/x" in text


@pytest.fixture
def own(monkeypatch):
    """The address of the user's own server, whose credentials the environment has."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000/a")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    return "http://host:5000/a"


@contextmanager
def foreign_server():
    """A server of somebody else; yield its address and a function that returns all requests."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(20)
        server.settimeout(0.2)
        received = []

        def requests() -> str:
            with suppress(TimeoutError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        received.append(connection.recv(65536).decode())
            return "".join(received)

        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests


def folder_that_names(kind: str, uri: str, place: Path) -> Path:
    """Return a folder of results whose configuration names a store."""
    config = (
        "algorithm: {name: fedavg}\ndata: {name: digits}\nmodel: {name: mlp}\nseed: 0\n"
        f"partition: {{scheme: iid}}\ntracking: {{mlflow: true, uri: '{uri}'}}\n"
    )
    path = place / "downloaded"
    run = {"run": path, "study": path / "methods", "comparison": path, "cell": path / "cells" / "a"}
    run[kind].mkdir(parents=True)
    if kind == "study":
        (path / "study.json").write_text("{}")
        (run[kind] / "fedavg.yaml").write_text(config)
    elif kind in ("comparison", "cell"):
        about = {"format": 1, "id": "a", "created": "", "command": [], "cells": []}
        base = Layer({"tracking": {"uri": uri, "mlflow": True}})
        method = LabelledLayer.of("local", Layer({"algorithm": {"name": "local"}}))
        design = Design(base=base, methods=(method,))
        (path / "comparison.json").write_text(json.dumps(about | design.model_dump(mode="json")))
    if kind in ("run", "cell"):
        (run[kind] / "config.yaml").write_text(config)
    return run[kind] if kind == "cell" else path


def command(kind: str, uri: str, place: Path) -> list[str]:
    """Return a command that reads an address from a folder or a file."""
    if kind == "resumed run":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stores, "installed", lambda: False)
            folder = interrupted_run(place, f"tracking.uri={uri}", "tracking.mlflow=auto")
        return ["run", "--resume", str(folder)]
    if kind == "file":
        (place / "config.yaml").write_text(f"tracking: {{mlflow: true, uri: '{uri}'}}\n")
        small = [item for item in SMALL if not item.startswith("tracking.")]
        return ["run", *small, "--config", str(place / "config.yaml")]
    what = ["compare", "--resume"] if kind == "resumed comparison" else ["sync"]
    return [*what, str(folder_that_names(kind.removeprefix("resumed "), uri, place))]


KINDS = ("run", "study", "comparison", "cell", "resumed run", "resumed comparison", "file")


@pytest.mark.slow
@pytest.mark.usefixtures("own", "_forked")
@pytest.mark.parametrize("kind", KINDS)
def test_no_credentials_are_sent_to_the_address_of_a_folder_or_file(kind, tmp_path, capsys):
    with foreign_server() as (uri, requests):
        code = app.main(command(kind, uri, tmp_path))

        assert not requests()
    said = capsys.readouterr().err
    assert code == (0 if kind == "resumed run" else 2)
    assert uri in said
    assert "--uri" in said or kind == "file"


@pytest.mark.slow
@pytest.mark.usefixtures("own", "_forked")
@pytest.mark.parametrize("mlflow", ["auto", "true"])
def test_resumed_study_sends_nothing_to_the_address_of_its_folder(
    mlflow, tmp_path, monkeypatch, capsys
):
    """Up to its first trial, and after the last one."""
    driver = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("flbench.api.tuning.cluster", lambda *_: nullcontext(driver))
    trained = []
    carry_out = "flbench.tuning.search.carry_out"
    monkeypatch.setattr(carry_out, lambda *given, **_: trained.append(given))
    with foreign_server() as (uri, requests):
        items = [item for item in SMALL if not item.startswith(("tracking.", "engine."))]
        items += ["algorithm=fedavg", f"tracking.uri={uri}", f"tracking.mlflow={mlflow}"]
        layer = from_overrides(items)
        request = TuneRequest(("fedavg",), trials=1, seeds=0, out=tmp_path)
        study = prepare.create(prepare.prepare(request, {"fedavg": [layer]}), ["flbench", "tune"])
        study.close()

        code = app.main(["tune", "--resume", str(study.path)])

        assert not requests()
    said = capsys.readouterr().err
    assert uri in said
    assert "--uri ADDRESS" in said
    assert (code == 2, len(trained)) == ((False, 1) if mlflow == "auto" else (True, 0))


@pytest.mark.slow
@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("is_planted", ["experiment", "run"])
def test_local_database_does_not_lead_to_a_server(is_planted, tmp_path, uri):
    """A database can name the place of its files, to which MLflow sends its credentials."""
    store = stores.open_store(uri)
    with foreign_server() as (server, requests):
        if is_planted == "experiment":
            store.client.create_experiment("mine", f"{server}/files")
        else:
            store.client.create_experiment("mine", tmp_path.as_uri())
        folder = folder_that_names("run", uri, tmp_path)
        if is_planted == "run":
            Sender(store, folder, "mine").send(None)
            file = stores.database_file(uri)
            with closing(sqlite3.connect(file)) as database:
                database.execute("UPDATE runs SET artifact_uri = ?", (f"{server}/files",))
                database.commit()

        with pytest.raises(ConfigError, match="credentials"):
            Sender(store, folder, "mine").send(None)

        assert not requests()


@pytest.mark.parametrize("planted", ["experiment", "run", "link"])
@pytest.mark.slow
def test_local_database_of_a_folder_keeps_files_below_itself(planted, tmp_path):
    """Otherwise `flbench sync` would overwrite a config.yaml in any folder of the user."""
    database = tmp_path / "downloaded" / "runs.db"
    database.parent.mkdir()
    uri = f"sqlite:///{database}"
    private = tmp_path / "private"
    private.mkdir()
    (private / "config.yaml").write_text("mine")
    own_one, others = (stores.open_store(Address(uri, by)) for by in ("user", "folder"))
    folder = folder_that_names("run", uri, tmp_path / "downloaded")
    place = private if planted == "experiment" else database.parent / "files"
    own_one.client.create_experiment("mine", place.as_uri())
    if planted != "experiment":
        Sender(others, folder, "mine").send(None)
        [run] = others.client.search_runs([others.experiment("mine")])
        place = Path(urlsplit(run.info.artifact_uri).path)
        (place / "config.yaml").unlink()
        with closing(sqlite3.connect(database)) as open_one:
            open_one.execute("DELETE FROM tags WHERE key LIKE 'mlflow.flbench.files%'")
            if planted == "run":
                open_one.execute("UPDATE runs SET artifact_uri = ?", (str(private),))
            open_one.commit()
        if planted == "link":
            (place / "config.yaml").symlink_to(private / "config.yaml")

    with pytest.raises(UserError, match="link" if planted == "link" else "--uri"):
        Sender(others, folder, "mine").send(None)

    assert (private / "config.yaml").read_text() == "mine"
    assert list(private.iterdir()) == [private / "config.yaml"]
    if planted == "experiment":
        assert own_one.experiment("mine")  # whom the user names may keep files anywhere


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["experiment", "link"])
def test_database_of_the_current_folder_keeps_files_below_itself(
    planted, tmp_path, monkeypatch, capsys
):
    """Nobody has named `mlflow/flbench.db`, which may have been downloaded with the folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    private, file = tmp_path / "private", tmp_path / "downloaded" / "mlflow" / "flbench.db"
    folder = folder_that_names("run", "", tmp_path)
    for one in (private, file.parent):
        one.mkdir()
    (private / "config.yaml").write_text("mine")
    monkeypatch.chdir(file.parent.parent)
    store = stores.open_store(f"sqlite:///{file}")
    if planted == "experiment":
        store.client.create_experiment("digits-iid", private.as_uri())
    else:
        file.rename(private / "other.db")
        file.symlink_to(private / "other.db")

    code = app.main(["sync", str(folder)])

    said = capsys.readouterr().err
    assert code == 2, said
    assert (private / "config.yaml").read_text() == "mine"
    assert "--uri" in said or "link" in said


@pytest.mark.parametrize("kind", ["database", "text", "link"])
def test_sync_changes_no_file_that_is_no_database_of_mlflow(kind, tmp_path, capsys):
    file = tmp_path / "mine.sqlite"
    if kind == "text":
        file.write_text("mine")
    else:
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE mine (a)")
            database.commit()
    before = file.read_bytes()
    named = file
    if kind == "link":
        named = tmp_path / "link.sqlite"
        named.symlink_to(file)
    folder = folder_that_names("run", f"sqlite:///{named}", tmp_path)

    assert app.main(["sync", str(folder)]) == 2
    assert str(named) in capsys.readouterr().err
    assert file.read_bytes() == before


def test_log_of_a_mirror_follows_no_link(tmp_path, monkeypatch):
    folder, private = folder_that_names("run", "mlruns", tmp_path), tmp_path / "private"
    private.write_text("secret")
    (folder / mirror.LOG).symlink_to(private)
    monkeypatch.setattr(mirror.subprocess, "Popen", lambda *_, stdout, **__: stdout.write(b"log"))

    with pytest.raises(OSError, match="symbolic links"):
        mirror.Mirror().start(folder, TrackingConfig())

    assert private.read_text() == "secret"
