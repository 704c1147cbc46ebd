"""The progress that a study prints while it runs."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from flbench.tuning import progress_table as boards
from flbench.tuning.progress_table import ProgressTable
from flbench.tuning.study import TrialFolder


@pytest.fixture
def progress(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(boards.time, "monotonic", lambda: clock[0])
    made = ProgressTable(("a", "b"), "accuracy", 2, 10, Console(file=io.StringIO(), width=200))
    made.clock = clock
    return made


def trial_of(method, index):
    return TrialFolder(Path(), method, index)


def ended(trial, **changes):
    record = {"method": trial.method, "index": trial.index, "reason": None, "loss": None}
    return record | {"state": "finished", "round": 10, "score": 0.5} | changes


def said(progress):
    return progress.console.file.getvalue()


def test_time_left_leaves_out_what_came_before_the_first_trial(progress):
    """40 rounds in all, one a second from the first report on."""
    job = trial_of("a", 0)
    progress.clock[0] += 60  # processes start
    progress.update(job, 0)
    progress.clock[0] += 10
    progress.update(job, 10)

    progress.end(ended(job))

    assert "30.0 s left" in said(progress)


def test_time_left_of_a_resumed_study_depends_on_its_own_rounds_only(progress):
    searched = [trial_of("a", k) for k in range(2)]
    progress.add_ended([ended(job, score=0.5 + job.index / 10) for job in searched])
    job = trial_of("b", 0)
    progress.update(job, 0)
    progress.clock[0] += 5
    progress.update(job, 5)

    progress.end(ended(job))

    assert progress.table().title.startswith("30 of about 40 rounds, 5.0 s left")


def test_time_left_expects_that_trials_are_stopped_as_early_as_before(progress):
    """Two of four trials were stopped after 2 rounds, a second each."""
    progress.update(trial_of("a", 0), 0)
    for method in ("a", "b"):
        job = trial_of(method, 0)
        progress.clock[0] += 2
        progress.update(job, 2)
        progress.end(ended(job, state="stopped", round=2))

    assert progress.table().title.startswith("4 of about 8 rounds, 4.0 s left")


def test_time_left_counts_what_an_interrupted_trial_had_done_as_done(progress):
    job = trial_of("a", 0)
    progress.add_interrupted([ended(job, state="running", round=8)])
    progress.update(job, 9)
    progress.clock[0] += 3
    progress.update(job, 10)

    # Two rounds took three seconds, and 30 are left; the eight rounds before took no time here.
    assert progress.table().title.startswith("10 of about 40 rounds, 45.0 s left")
