"""Which checkpoints of the trials of a study stay on the disk."""

import json
from pathlib import Path

import pytest

from flbench.cli import app
from flbench.tuning.leftovers import remove_checkpoints, remove_copies
from flbench.tuning.plan import Budget, StudyPlan
from flbench.tuning.queue import JobQueue
from flbench.tuning.study import TrainingJob, write_record
from tests.tuning.test_plan import Counting


def record(study: Path, index: int, state: str, score: float | None):
    """Write what a training leaves that has ended or is running."""
    job = TrainingJob("a", index, 0, {})
    found = job.record(4) | {"state": state, "score": score}
    write_record(study, job, found)
    (study / job.name / "checkpoints").mkdir()
    (study / job.name / "checkpoints" / "last.safetensors").write_text("")
    (study / job.name / "metrics.csv").write_text("")
    return found


def kept(study: Path) -> list[str]:
    assert all((path.parent / "metrics.csv").is_file() for path in study.glob("*/*/*/trial.json"))
    return sorted(path.parent.name for path in study.glob("*/*/*/checkpoints"))


def test_the_best_trial_keeps_its_checkpoints(tmp_path):
    records = [
        record(tmp_path, 0, "finished", 0.5),
        record(tmp_path, 1, "stopped", 0.9),  # it cannot win
        record(tmp_path, 2, "finished", 0.7),
        record(tmp_path, 3, "finished", 0.7),  # a tie is won by the first
        record(tmp_path, 4, "failed", None),
    ]
    record(tmp_path, 5, "running", 0.2)

    remove_checkpoints(tmp_path, records[:2])
    assert kept(tmp_path) == ["000", "002", "003", "004", "005"]
    remove_checkpoints(tmp_path, records)
    assert kept(tmp_path) == ["002", "005"]


def test_without_a_score_no_trial_is_the_best(tmp_path):
    remove_checkpoints(tmp_path, [record(tmp_path, 0, "diverged", None)])

    assert kept(tmp_path) == []


def test_states_that_ray_tune_has_copied_are_removed(tmp_path):
    job = tmp_path / "ray" / "x.json"
    copy = tmp_path / "ray" / "tune" / "trial" / "checkpoint_000000"
    copy.mkdir(parents=True)
    job.write_text("{}")

    remove_copies(tmp_path)
    remove_copies(tmp_path)

    assert list((tmp_path / "ray").iterdir()) == [job]


@pytest.mark.parametrize(("keeps_all", "expected"), [(False, ["000"]), (True, ["000", "001"])])
def test_checkpoints_are_removed_as_soon_as_a_trial_has_lost(tmp_path, keeps_all, expected):
    queue = JobQueue(
        tmp_path,
        StudyPlan({"a": Counting()}, Budget(2, 0, 2)),
        lambda job: True,
        lambda record: None,
        rounds=4,
        is_over=lambda: False,
        keeps_all=keeps_all,
    )
    for index, score in enumerate((0.5, 0.4)):
        queue.suggest(str(index))
        record(tmp_path, index, "finished", score)
        queue.on_trial_complete(str(index), {})

    assert kept(tmp_path) == expected


def test_the_model_of_a_trial_without_checkpoints_is_an_error_with_the_cure(
    finished_run, tmp_path, capsys
):
    trial = tmp_path / "000"
    trial.mkdir()
    for name in ("config.yaml", "metrics.csv", "partition.npz", "partition.json"):
        (trial / name).write_bytes((finished_run / name).read_bytes())
    (trial / "trial.json").write_text(json.dumps({}))

    code = app.main(["export", str(trial), "--client", "0", "--out", str(tmp_path / "x.pt2")])

    assert code == 2
    assert "output.keep_trials=all" in capsys.readouterr().err
