"""`flbench tune` as a user meets it: whole studies on real Ray clusters, killed and resumed.

Each start of Ray costs seconds, so a study answers several questions here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

import flbench as fl
from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.sources import from_file, from_overrides, leaves
from flbench.core.tree import digest
from flbench.experiment import lifecycle
from flbench.results import metrics_file
from flbench.results.study_folder import Trial, read_trial
from flbench.tuning import prepare
from flbench.tuning.study import StudyFolder
from tests.support import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

QUICK = [item for item in SMALL if not item.startswith("engine.")]


def arguments(out: Path, algo: str, *more: str) -> list[str]:
    keys = [*QUICK, "output.keep_trials=all"]  # which the tests compare with runs
    return ["tune", "--algo", algo, "--out", str(out), *keys, *more]


def study_in(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


def tune(out: Path, algo: str, *more: str) -> Path:
    assert app.main(arguments(out, algo, *more)) == 0
    return study_in(out)


def record_of(study: Path, name: str) -> dict[str, Any]:
    """Return the record of a trial; one that has not begun has state "waiting" and round 0."""
    file = study / name / "trial.json"
    return json.loads(file.read_text()) if file.exists() else {"state": "waiting", "round": 0}


def records(study: Path) -> dict[str, dict[str, Any]]:
    names = [file.parent.relative_to(study) for file in sorted(study.glob("trials/*/*/trial.json"))]
    return {name.as_posix(): record_of(study, name.as_posix()) for name in names}


def cell_of(study: Path, label: str) -> str:
    """Return the path of the first cell of a method within a study."""
    cells = json.loads((study / "comparison.json").read_text())["cells"]
    return next(f"cells/{cell['name']}" for cell in cells if cell["method"] == label)


def weights_in(folder: Path) -> str:
    return digest([load_file(folder / "checkpoints" / "last.safetensors")])


def run_of(study: Path, name: str, out: Path, *more: str) -> Path:
    """Train the configuration of a trial as `flbench run` does, and return the run folder."""
    layers = [from_file(study / name / "config.yaml"), from_overrides([f"output.dir={out}", *more])]
    return lifecycle.run(*resolve(layers))


def weights_of_a_run(study: Path, name: str, out: Path, *more: str) -> str:
    return weights_in(run_of(study, name, out, *more))


def last_validation_accuracy(run: Path) -> float:
    """Return the accuracy of the personal models in the last round with an evaluation."""
    rows = metrics_file.read(run / "metrics.csv")
    wanted = ("validation", "personal", "accuracy")
    *_, last = (row.value for row in rows if (row.split, row.protocol, row.metric) == wanted)
    return last


def assert_is_what_a_plain_loop_finds(study: Path, trials: int, out: Path) -> None:
    """Compare a study with a loop that proposes parameters and trains them by `flbench run`."""
    with closing(StudyFolder.reopen(study)) as folder:
        prepared = prepare.reopen(folder, {})
    for method, proposals in prepared.proposals().items():
        known: dict[int, Trial] = {}
        while len(known) < trials:
            for index, params in enumerate([*proposals.given(known)][len(known) :], len(known)):
                name = f"trials/{method}/{index:03}"
                trial = read_trial(study / name / "trial.json")
                run = run_of(study, name, out / name)
                assert trial.params == params
                assert trial.score == last_validation_accuracy(run)
                assert weights_in(study / name) == weights_in(run)
                known[index] = trial
        best = min(known.values(), key=lambda one: (-one.score, one.loss)).params
        won = {} if best == known[0].params else {f"{method} tuned": best}
        for label, params in {method: known[0].params, **won}.items():
            name = cell_of(study, label)
            config = yaml.safe_load((study / name / "config.yaml").read_text())
            assert {key: leaves(config)[key] for key in params} == params
            own, searched = (
                json.loads((study / one / "partition.json").read_text())["hash"]
                for one in (name, f"trials/{method}/000")
            )
            assert own != searched
            assert weights_in(study / name) == weights_of_a_run(study, name, out / name)


def begin(*command: str) -> subprocess.Popen[str]:
    """Start Python as a shell does in the background: with SIGINT ignored."""
    ignoring = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable]
    return subprocess.Popen(
        [*ignoring, *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(process: subprocess.Popen[str], said: str) -> None:
    """Read the output of a study until it contains a text."""
    for line in process.stderr:
        if said in line:
            return
    raise AssertionError("the study ended before it was to be stopped")


def wait_until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    while not holds():
        assert process.poll() is None, "the study ended before it was to be disturbed"
        time.sleep(0.01)


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def terminate_all(process: subprocess.Popen[str]) -> None:
    """Ray's servers and workers get the signal too."""
    os.killpg(process.pid, signal.SIGTERM)


def assert_is_complete(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files are there, no trial saw the test data, and resuming only writes the report."""
    assert all(record["state"] == "finished" for record in records(study).values())
    for name in ("study.json", "comparison.json", "report.html", "methods/fedavg.yaml"):
        assert (study / name).stat().st_size
    assert not (study / "search").exists()  # nothing of Ray Tune's is needed any more
    for file in study.glob("trials/*/*/metrics.csv"):
        assert not {row.split for row in metrics_file.read(file)} & {"test", "common"}
    assert list(study.glob("cells/*/summary.json"))
    (study / "report.html").unlink()
    assert app.main(["tune", "--resume", str(study)]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert (study / "report.html").stat().st_size


@pytest.mark.parametrize(
    ("stop", "is_killed", "concurrent"),
    [
        (terminate_all, False, 1),
        pytest.param(terminate_all, True, 2, marks=pytest.mark.full),
        pytest.param(interrupt, True, 2, marks=pytest.mark.full),
    ],
)
def test_study_that_is_stopped_and_killed_ends_as_a_plain_loop(
    tmp_path, stop, is_killed, concurrent, capsys
):
    """Stopped, then resumed and killed with SIGKILL: no trial that had ended is touched again.

    Optuna proposes from the results of those before. Where two trials run at once, they do not
    depend on which of them ends first.
    """
    more = ("--search", "optuna", "--trials", "3", "--seeds", "1", "--scheduler", "none")
    more = (*more, "--jobs", str(concurrent), "train.rounds=8", "partition.samples=null")
    process = begin("-m", "flbench", *arguments(tmp_path / "broken", "fedavg,fedproto", *more))
    wait_for(process, "finished")
    stop(process)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    study = study_in(tmp_path / "broken")
    assert f"flbench tune --resume {study}" in said

    if is_killed:
        process = begin("-m", "flbench", "tune", "--resume", str(study))
        wait_for(process, "finished")
        process.kill()
        process.communicate()
    ended = {name for name, record in records(study).items() if record["ended"]}
    untouched = {name: (study / name / "trial.json").stat().st_mtime_ns for name in ended}
    assert 1 + is_killed <= len(ended) <= 6
    assert app.main(["tune", "--resume", str(study)]) == 0

    assert_is_complete(study, capsys)
    assert len(records(study)) == 2 * 3
    assert 2 <= len(list(study.glob("cells/*/summary.json"))) <= 2 * 2
    assert_is_what_a_plain_loop_finds(study, 3, tmp_path / "runs")
    assert all(
        (study / name / "trial.json").stat().st_mtime_ns == when for name, when in untouched.items()
    )
    for file in [*study.glob("*/*/*/metrics.csv"), *study.glob("cells/*/metrics.csv")]:
        keys = [row[:4] for row in metrics_file.read(file)]
        assert len(keys) == len(set(keys))


@pytest.mark.full
def test_study_goes_on_when_workers_die_and_trials_diverge(tmp_path):
    """A worker that dies once costs nothing, one that dies again its trial, never the study."""
    space = tmp_path / "fedprox.yaml"
    space.write_text(
        "method: fedprox\nspace:\n  train.optimizer.lr: {choice: [0.05, 0.1, 1.0e+30]}\n"
    )
    command = arguments(tmp_path / "out", "fedprox", "--space", str(space), "--search", "grid")
    command += ["--trials", "4", "--seeds", "1", "--scheduler", "none", "--retries", "1"]
    once, often, wrong = (f"trials/fedprox/{index:03}" for index in (1, 2, 3))

    rounds = ("train.rounds=60", "evaluation.every=20", "partition.samples=null")
    process = begin("-m", "flbench", *command, "--jobs", "2", *rounds)
    wait_for(process, "60 rounds each")  # the study's folder is there
    study = study_in(tmp_path / "out")
    killed: list[int] = []
    for name in (once, often, often):

        def is_under_way(name=name) -> bool:
            record = record_of(study, name)
            running = record["state"] == "running" and record["round"] >= 4
            return running and record["pid"] not in killed

        wait_until(process, is_under_way)
        killed.append(record_of(study, name)["pid"])
        os.kill(killed[-1], signal.SIGKILL)
    said = process.communicate(timeout=300)[1]

    assert process.returncode == 0, said
    ended = records(study)
    assert {name: record["state"] for name, record in ended.items()} == {
        "trials/fedprox/000": "finished",
        once: "finished",
        often: "failed",
        wrong: "diverged",
    }
    assert len(list(study.glob("cells/*/summary.json"))) == 2
    assert (ended[once]["attempts"], ended[often]["attempts"]) == (2, 2)
    assert weights_in(study / once) == weights_of_a_run(study, once, tmp_path / "run")
    assert ended[often]["reason"] in said


def test_searches_at_equal_steps(tmp_path):
    """Ditto trains two models, so its trials are half as many; the steps are those of the runs."""
    more = ("--equal", "steps", "--trials", "4", "--seeds", "0", "--jobs", "1")
    study = tune(tmp_path, "fedavg,ditto", *more)

    found = fl.load(study)
    trials = found.trials.groupby("method")
    assert trials.size().to_dict() == {"fedavg": 4, "ditto": 2}
    steps = trials["steps"].sum().to_dict()
    assert steps["fedavg"] == steps["ditto"] > 0
    for name, record in records(study).items():
        rows = metrics_file.read(study / name / "metrics.csv")
        assert record["steps"] == sum(row.value for row in rows if row.metric == "steps")
    shown = {row["method"]: row for row in found.report.table.rows}
    assert {name: row["steps"] for name, row in shown.items()} == steps
    assert len(found.report.notes) == 1  # there are no repetitions
    assert app.main(["tune", "--resume", str(study)]) == 0
    assert len(records(study)) == 6
