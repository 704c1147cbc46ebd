"""`flbench tune` as a user meets it: whole studies on real Ray clusters, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flbench.cli import app
from flbench.core.tree import digest
from flbench.results import metrics_file
from tests.support import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUICK = [item for item in SMALL if not item.startswith("engine.")]


def arguments(out: Path, algo: str, *more: str) -> list[str]:
    return ["tune", "--algo", algo, "--out", str(out), *QUICK, *more]


def study_in(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


def tune(out: Path, algo: str, *more: str) -> Path:
    assert app.main(arguments(out, algo, *more)) == 0
    return study_in(out)


def records(study: Path) -> dict[str, dict]:
    return {
        file.parent.relative_to(study).as_posix(): json.loads(file.read_text())
        for file in sorted(study.glob("*/*/*/trial.json"))
    }


def found(study: Path) -> dict[str, tuple]:
    """What came of each trial: its parameters, score and weights."""
    result = {}
    for name, record in records(study).items():
        weights = digest([load_file(study / name / "checkpoints" / "last.safetensors")])
        result[name] = (record["params"], record["state"], record["score"], weights)
    return result


def begin(*command: str) -> subprocess.Popen:
    """Start flbench as a shell does in the background: with SIGINT ignored."""
    return subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            'trap "" INT; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "flbench",
            *command,
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen, said: str, times: int) -> None:
    """Read what a study says until it has said something so often."""
    for line in process.stderr:
        times -= said in line
        if not times:
            return
    raise AssertionError("the study ended before it was to be stopped")


def test_optuna_gives_the_same_trials_again_with_two_at_once(tmp_path, capsys):
    more = ("--search", "optuna", "--scheduler", "none", "--trials", "7", "--seeds", "1")

    first, second = (
        tune(tmp_path / name, "fedavg", *more, "--concurrent", "2") for name in ("a", "b")
    )

    assert found(first) == found(second)
    assert len(found(first)) == 7 + 2
    assert all(record["state"] == "finished" for record in records(first).values())
    for name in ("trials.csv", "results.json", "study.md", "report.html", "methods/fedavg.yaml"):
        assert (first / name).stat().st_size
    for file in first.glob("trials/*/*/metrics.csv"):
        assert not {row.split for row in metrics_file.read(file)} & {"test", "common"}
    assert list(first.glob("finals/*/*/summary.json"))
    (first / "report.html").unlink()
    assert app.main(["tune", "--resume", str(first)]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert (first / "report.html").stat().st_size


def test_study_that_is_stopped_and_killed_ends_as_a_straight_one(tmp_path):
    """Ctrl-C, SIGTERM to the whole group, kill -9; no trial that had ended is touched again."""
    more = ("--trials", "3", "--seeds", "1", "--scheduler", "none", "train.rounds=12")
    straight = tune(tmp_path / "straight", "fedavg,fedproto", *more)
    process = begin(*arguments(tmp_path / "broken", "fedavg,fedproto", *more))
    wait_for(process, "finished", 1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    study = study_in(tmp_path / "broken")
    assert f"flbench tune --resume {study}" in said

    process = begin("tune", "--resume", str(study))
    wait_for(process, "finished", 1)
    os.killpg(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"flbench tune --resume {study}" in said

    process = begin("tune", "--resume", str(study))
    wait_for(process, "finished", 1)
    process.kill()
    process.communicate()
    ended = {name for name, record in records(study).items() if record["ended"]}
    untouched = {name: (study / name / "trial.json").stat().st_mtime_ns for name in ended}
    assert 3 <= len(ended) < 8
    done = begin("tune", "--resume", str(study))
    said = done.communicate(timeout=400)[1]

    assert done.returncode == 0, said
    assert found(study) == found(straight)
    assert all(
        (study / name / "trial.json").stat().st_mtime_ns == when for name, when in untouched.items()
    )
    for file in study.glob("*/*/*/metrics.csv"):
        keys = [row[:4] for row in metrics_file.read(file)]
        assert len(keys) == len(set(keys))


def test_trial_whose_worker_is_killed_goes_on_and_ends_as_if_nothing_was(tmp_path, capfd):
    more = ("--trials", "2", "--seeds", "0", "--concurrent", "1", "train.rounds=40")
    more = (*more, "--scheduler", "none")
    straight = tune(tmp_path / "straight", "fedproto", *more)
    process = begin(*arguments(tmp_path / "broken", "fedproto", *more))
    wait_for(process, "finished", 1)
    study = study_in(tmp_path / "broken")
    file = study / "trials/fedproto/001/trial.json"
    while not file.exists() or not 8 <= json.loads(file.read_text())["round"] < 40:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    said = process.communicate(timeout=300)[1]

    assert process.returncode == 0, said
    assert "resumes from its checkpoint" in said
    assert found(study) == found(straight)
    assert records(study)["trials/fedproto/001"]["attempts"] == 2


def test_trial_whose_worker_is_killed_again_and_again_is_recorded_as_failed(tmp_path):
    """And the search goes on, and its result stands on the others."""
    more = ("--trials", "2", "--seeds", "0", "--concurrent", "1", "--retries", "1")
    process = begin(
        *arguments(tmp_path / "out", "fedavg", *more, "train.rounds=400"), "evaluation.every=400"
    )
    wait_for(process, "finished", 1)
    study = study_in(tmp_path / "out")
    file, killed = study / "trials/fedavg/001/trial.json", set()
    while len(killed) < 2:
        assert process.poll() is None
        pid = json.loads(file.read_text())["pid"] if file.exists() else None
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.01)
    said = process.communicate(timeout=300)[1]

    assert process.returncode == 0, said
    record = json.loads(file.read_text())
    assert (record["state"], record["attempts"]) == ("failed", 2)
    assert "its worker process died" in record["reason"]
    assert record["reason"] in said


def test_trials_that_diverge_are_recorded_and_the_search_goes_on(tmp_path):
    space = tmp_path / "fedprox.yaml"
    space.write_text(
        "method: fedprox\n"
        "space:\n"
        "  train.optimizer.lr: {choice: [0.1, 1.0e+30]}\n"
        "  algorithm.mu: {choice: [0.1, 1.0e+30]}\n"
    )

    study = tune(
        tmp_path / "out", "fedprox", "--space", str(space), "--trials", "5", "--seeds", "1",
        "--search", "grid", "--scheduler", "none",
    )  # fmt: skip

    states = {name: record["state"] for name, record in records(study).items()}
    assert sorted(states.values()).count("diverged") >= 2
    assert states["finals/fedprox/tuned-seed1"] == "finished"
    worst = [record for record in records(study).values() if record["state"] == "diverged"]
    assert all("diverged" in record["reason"] for record in worst)


def test_trials_that_start_workers_of_their_own_do_not_wait_for_ever(tmp_path):
    more = ("--trials", "2", "--seeds", "0", "--scheduler", "none")

    plain = tune(tmp_path / "plain", "fedavg", *more)
    nested = tune(tmp_path / "nested", "fedavg", *more, "engine.name=ray")  # as many as cores

    assert found(nested) == found(plain)


TWO_NODES = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000},
)
cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
from flbench.cli import app

try:
    code = app.main([*sys.argv[1:], "--address", cluster.address])
finally:
    cluster.shutdown()
sys.exit(code)
"""


def test_study_on_a_cluster_of_two_nodes_has_trials_on_both(tmp_path):
    command = arguments(tmp_path / "out", "fedproto", "--trials", "4", "--seeds", "0")
    command += ["--concurrent", "2", "--scheduler", "none", "train.rounds=10"]

    done = subprocess.run(
        [sys.executable, "-c", TWO_NODES, *command], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    study = study_in(tmp_path / "out")
    assert len({record["node"] for record in records(study).values()}) == 2
    assert all(record["state"] == "finished" for record in records(study).values())


def test_population_exchanges_states_and_leaves_the_defaults_alone(tmp_path):
    more = ("--scheduler", "pbt", "--trials", "5", "--seeds", "0", "train.rounds=10")

    study = tune(tmp_path / "out", "fedavg", *more, "train.local_epochs=2")

    trials = records(study)
    assert all(record["state"] == "finished" for record in trials.values())
    assert all(record["attempts"] == 1 for record in trials.values())
    assert trials["trials/fedavg/000"]["params"] == {"train.optimizer.lr": 0.01}
    from flbench.tuning.library import built_in
    from flbench.tuning.samplers import RandomSampler

    drawn = RandomSampler(built_in("fedavg", rounds=10), {"train.optimizer.lr": 0.01}, 0)
    assert any(record["params"] != drawn.trial(record["index"]) for record in trials.values()), (
        "nothing was exchanged"
    )
    for file in study.glob("trials/*/*/metrics.csv"):
        rounds = [row.round for row in metrics_file.read(file) if row.metric == "loss"]
        assert rounds == list(range(1, 11))
