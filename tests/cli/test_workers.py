"""When `flbench run` prepares workers of this machine."""

from contextlib import contextmanager, nullcontext

import pytest

from flbench.api import running
from flbench.cli import app, workers


@pytest.mark.parametrize(
    "words", [["engine.workers=1"], ["engine.name=ray"], ["hfcd", "engine.workers=1", "seed=2"]]
)
def test_nothing_is_prepared_if_the_command_line_says_that_no_worker_is_needed(words):
    assert isinstance(workers.prepared(workers.named(words, {})), nullcontext)


@pytest.mark.parametrize(("value", "ends_early"), [(1, True), ("auto", False)])
def test_workers_are_prepared_before_files_are_read_and_given_up_if_a_file_needs_none(
    tmp_path, monkeypatch, capsys, value, ends_early
):
    happened = []

    @contextmanager
    def started():
        happened.append("begins")
        yield
        happened.append("ends")

    def start(*given):
        happened.append("trains")
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.fork_server, "started", started)
    monkeypatch.setattr(workers, "GPUS", tmp_path / "none")
    monkeypatch.setattr(running, "start", start)
    config = tmp_path / "config.yaml"
    config.write_text(f"engine: {{workers: {value}}}\n")

    app.main(["run", "fedavg", "--config", str(config)])

    capsys.readouterr()
    if ends_early:
        assert happened == ["begins", "ends", "trains"]
    else:
        assert happened[:3] == ["begins", "begins", "ends"]  # two users, the first ends
        assert "trains" in happened
