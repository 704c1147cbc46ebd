"""When `flbench run` prepares workers of this machine."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flbench.api import resuming, running
from flbench.cli import app, early_workers


@pytest.fixture
def happened(tmp_path, monkeypatch):
    """What a command did with the workers of this machine, and with runs; nothing is trained."""
    events = []

    def trains(*given):
        events.append("trains")
        raise KeyboardInterrupt

    monkeypatch.setattr(early_workers.fork_server, "prepare", lambda: events.append("begins"))
    monkeypatch.setattr(early_workers, "GPUS", tmp_path / "none")
    monkeypatch.setattr(running, "start", trains)
    monkeypatch.setattr(resuming, "carry_on", trains)
    return events


@pytest.mark.parametrize("words", [["engine.workers=1"], ["engine.name=ray"], ["--engine", "ray"]])
def test_nothing_is_prepared_if_the_command_line_says_that_no_worker_is_needed(
    happened, capsys, words
):
    app.main(["run", "fedavg", *words])

    assert happened == ["trains"]
    assert capsys.readouterr()


@pytest.mark.parametrize("value", [1, 1.0, "1"])
def test_a_value_that_equals_one_needs_no_worker(happened, value):
    early_workers.prepare({"engine.workers": value})

    assert happened == []


def test_workers_are_prepared_before_files_are_read(happened, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("engine: {workers: auto}\n")

    app.main(["run", "fedavg", "--config", str(config)])

    assert happened == ["begins", "trains"]
    assert capsys.readouterr()


def test_a_resumed_run_has_workers_too(happened, tmp_path, capsys):
    app.main(["run", "--resume", str(tmp_path)])

    assert happened == ["begins", "trains"]
    assert capsys.readouterr()


@pytest.mark.parametrize("option", ["--dry-run", "--print-config"])
def test_nothing_is_prepared_if_nothing_is_trained(happened, capsys, option):
    assert app.main(["run", "no_such_method", option]) == 2

    assert happened == []
    assert "no_such_method" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("library", ["libtorch_cpu", "libtorch_python"])
def test_ctrl_c_in_the_middle_of_the_imports_is_one_line(tmp_path, library):
    process = subprocess.Popen(
        [sys.executable, "-m", "flbench", "run", "fedavg", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    libraries = Path(f"/proc/{process.pid}/maps")
    while library not in libraries.read_text():
        time.sleep(0.002)
    time.sleep(0.01)

    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")
