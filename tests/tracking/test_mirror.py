"""The mirror as a process of its own: unreachable servers, and runs that are killed."""

import json
import shutil
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flbench.cli import app
from flbench.config.schema import TrackingConfig
from flbench.core.errors import ConfigError, UserError
from flbench.core.files import is_locked
from flbench.results import metrics_file
from flbench.tracking import follow, measures, mirror, ui, view
from flbench.tracking import store as stores
from tests.forks import Fork
from tests.installed import needs
from tests.support import SMALL, run
from tests.tracking import study
from tests.tracking.conftest import copied
from tests.tracking.planned import planned_server
from tests.tracking.reading import entries, history, only

pytestmark = [pytest.mark.mlflow, pytest.mark.slow, needs("mlflow")]

RUN = [*SMALL, "algorithm=fedavg", "tracking.mlflow=true"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path, _ = run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg")
    return path


def wait(done: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def is_free(path: Path) -> bool:
    """Whether no mirror is at work on a folder."""
    with follow._locked(path) as is_locked:
        return is_locked


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_mirror_is_off_where_it_is_switched_off_or_mlflow_is_missing(tmp_path, monkeypatch):
    off = mirror.Mirror().start(tmp_path, TrackingConfig(mlflow=False))
    monkeypatch.setattr(stores, "installed", lambda: False)
    auto = mirror.Mirror().start(tmp_path, TrackingConfig())

    assert off.uri is auto.uri is None
    with pytest.raises(ConfigError, match=r"`tracking\.mlflow=true`"):
        mirror.Mirror().start(tmp_path, TrackingConfig(mlflow=True))


@pytest.mark.full
def test_run_is_mirrored_by_a_process_of_its_own(tmp_path):
    """The run's own process never imports MLflow."""
    uri = f"sqlite:///{tmp_path}/m/flbench.db"
    items = [*RUN, f"output.dir={tmp_path}", f"tracking.uri={uri}", "tracking.experiment=mine"]
    script = (
        "import sys; from flbench.cli.app import main; code = main(['run', *sys.argv[1:]]);"
        "sys.exit(9 if 'mlflow' in sys.modules else code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, *items], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    [folder] = tmp_path.glob("digits-dirichlet/*")
    store = stores.open_store(uri)
    # On a busy machine the run does not wait until its mirror has sent everything.
    wait(
        lambda: (
            [one.info.status for one in entries(store, "flbench.run", folder.name)] == ["FINISHED"]
        )
    )
    entry = only(store, folder)
    assert entry.info.experiment_id == store.client.get_experiment_by_name("mine").experiment_id
    assert "accuracy" in entry.data.metrics
    wait(lambda: is_free(folder))
    again, _ = follow.sync(folder, None)  # to where its configuration says
    assert not again


@pytest.mark.usefixtures("_forked")
@pytest.mark.processes
def test_killed_run_is_marked_and_its_resumption_continues_the_same_entry(tmp_path, uri):
    store = stores.open_store(uri)
    items = [*RUN, f"output.dir={tmp_path}", f"tracking.uri={uri}", "train.rounds=150"]
    more = ["output.checkpoint_every=2", "evaluation.every=50", "partition.samples=null"]
    process = Fork(tmp_path, app.main, ["run", *items, *more])
    try:
        wait(lambda: entries(store, "kind", "run"))
        wait(lambda: list(tmp_path.glob("*/*/checkpoints/last.safetensors")))
        [folder] = tmp_path.glob("digits-dirichlet/*")
        held = not is_free(folder)
        early = only(store, folder)
    finally:
        process.kill()
    assert held
    assert not (folder / "summary.json").exists(), "the run was over before it could be killed"
    # A mirror that is a fork has the lock file of the killed process open until it ends itself.
    wait(lambda: is_free(folder) and not is_locked(folder))
    killed = only(store, folder)

    code = app.main(["run", "--resume", str(folder)])

    resumed = only(store, folder)
    assert code == 0
    assert [early.info.status, killed.info.status] == ["RUNNING", "KILLED"]
    assert resumed.info.run_id == killed.info.run_id
    assert resumed.info.status == "FINISHED"
    rows = metrics_file.read(folder / "metrics.csv")
    named = [row for row in rows if row[1:4] == ("train", "", "loss")]
    losses = store.client.get_metric_history(resumed.info.run_id, "train/loss")
    wanted = [(row.round, measures.rounded(row.value)) for row in named]
    assert sorted((point.step, point.value) for point in losses) == wanted


@pytest.mark.usefixtures("_forked")
def test_mirror_reports_how_a_run_ended_that_is_named_by_a_dot(
    finished, tmp_path, uri, monkeypatch
):
    path = shutil.copytree(finished, tmp_path / "failed")
    (path / "summary.json").unlink()
    monkeypatch.chdir(path)

    said = mirror.Mirror().start(Path(), TrackingConfig(uri=uri)).finish(60, "failed")

    store = stores.open_store(uri)
    assert said == []
    assert only(store, path).info.status == "FAILED"
    follow.sync(path, uri)
    assert only(store, path).info.status == "FAILED"  # a later sync cannot know better


@pytest.mark.usefixtures("_forked")
def test_a_server_that_starts_late_or_dies_gets_everything(finished, tmp_path, database, capsys):
    path = shutil.copytree(finished, tmp_path / "late")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    mirrored = mirror.Mirror().start(path, TrackingConfig(uri=uri))
    wait(lambda: "connection refused" in (path / mirror.LOG).read_text())

    with planned_server(copied(database, tmp_path / "db"), tmp_path / "artifacts", port):
        said = mirrored.finish(60)
        store = stores.open_store(uri)
        entry = only(store, path)
        points = len(history(store, entry))
        nothing, _ = follow.sync(path, uri)
        late = shutil.copytree(finished, tmp_path / "later")
        more, _ = follow.sync(late, uri)

    assert said == []
    assert entry.info.status == "FINISHED"
    assert points > len(measures.curves(path / "metrics.csv", "accuracy"))
    assert not nothing
    assert more.files > 5
    assert not capsys.readouterr().out  # MLflow would print two lines for each run
    assert app.main(["sync", str(path), "--uri", uri]) == 2
    assert uri in capsys.readouterr().err


def test_ui_serves_the_store_until_it_is_interrupted(finished, tmp_path, uri):
    paths = [shutil.copytree(finished, tmp_path / name) for name in ("one", "two")]
    config = paths[1] / "config.yaml"
    config.write_text(config.read_text().replace("name: fedavg", "name: fedprox"))
    for path in paths:
        follow.sync(path, uri)
    port = free_port()
    process = Fork(tmp_path, app.main, ["ui", "--uri", uri, "--port", str(port)])
    try:
        wait(lambda: "Ctrl-C" in process.out or not process.is_running())
        text = process.out
        password = text.partition("password: ")[2].split()[0]
        query = "ajax-api/2.0/mlflow/experiments/get?experiment_id=1"
        pages = [f"http://127.0.0.1:{port}/{path}" for path in ("", "health", query)]
        for given, status in ((None, 401), ("wrong", 401), (password, 200)):
            assert {status_of(page, given) for page in pages} == {status}
        assert status_of(f"http://127.0.0.1:{port}/health/../", None) == 401
        delete = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/delete"
        assert status_of(delete, None, b'{"experiment_id": "1"}') == 401
        process.interrupt()
        code = process.wait(60)
    finally:
        process.kill()

    assert code == 0
    assert f"http://127.0.0.1:{port}/#/experiments/1/runs?viewStateShareKey={view.RUNS}" in text
    check_view(stores.open_store(uri), paths)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_ui_gives_its_password_to_no_other_server_at_its_port(uri):
    """Another user listens first."""
    said = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(UserError, match=f"--port {port}"):
            ui.serve(uri, port, said.append)

    assert not said
    with ui._listening(free_port()) as own, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(own.getsockname())


def status_of(page: str, password: str | None, content: bytes | None = None) -> int:
    """Return the status with which a server answers a request."""
    headers = {"Content-Type": "application/json"}
    if password is not None:
        encoded = b64encode(f"flbench:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    try:
        with urlopen(Request(page, content, headers), timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def check_view(store: stores.Store, paths: list[Path]) -> None:
    """The view has both runs, and columns and charts of metrics that they have."""
    tags = store.client.get_experiment("1").tags
    [name] = [name for name in tags if name.startswith(view.TAG_PREFIX)]
    assert name == view.TAG_PREFIX + view.RUNS
    found = json.loads(tags[name])
    shown = store.client.search_runs(["1"], found["searchFilter"])
    assert {run.info.run_id for run in shown} == {only(store, path).info.run_id for path in paths}
    columns = [name for name in found["selectedColumns"] if name.startswith("metrics.")]
    assert {"metrics.`accuracy`", "metrics.`cost/up_bytes`"} <= set(columns)
    charts = [chart["metricKey"] for chart in found["compareRunCharts"] if "metricKey" in chart]
    assert {"accuracy", "f1/0", "recall/9", "cost/seconds"} <= set(charts)
    names = {name.removeprefix("metrics.").strip("`") for name in columns} | set(charts)
    assert all(name in run.data.metrics for name in names for run in shown)


def test_sync_refuses_a_folder_that_is_being_mirrored(finished, tmp_path, capsys):
    path = shutil.copytree(finished, tmp_path / "busy")
    with follow._locked(path):
        code = app.main(["sync", str(path), "--uri", f"sqlite:///{tmp_path}/y.db"])

    assert code == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.usefixtures("_forked")
def test_live_mirror_outlives_a_trial_that_cannot_be_read(finished, tmp_path, uri):
    path = study.make(tmp_path, {"fedavg": finished}, cells=False)
    file = path / "trials" / "fedavg" / "001" / "trial.json"
    text = file.read_text()
    file.write_text("{")
    mirrored = mirror.Mirror().start(path, TrackingConfig(uri=uri))
    wait(lambda: f"{file} is damaged" in (path / mirror.LOG).read_text())
    file.write_text(text)

    said = mirrored.finish(60)

    assert said == []
    key = f"{path.name}/trials/fedavg/001"
    [entry] = entries(stores.open_store(uri), "flbench.run", key)
    assert entry.info.status == "FINISHED"
