"""A job whose machine is lost begins again when its old process writes no more."""

from flbench.core import files
from flbench.jobs.job import Job, Task
from flbench.jobs.launchers import attempts
from tests.support import config_of


def test_a_lost_job_waits_for_the_process_that_still_writes_to_its_folder(tmp_path, monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now[0])
    lost = attempts.Lost(60.0, told.append)
    job = Job("job0", "ft", "digits", "", 0, config_of(), {})
    task = Task(tmp_path, job.layer)
    lock = files.lock_folder(tmp_path)

    lost.add(job, task)
    for now[0] in (1.0, 5.0, 22.0, 30.0, 45.0):
        assert not list(lost.free())
    assert len(told) == 3
    assert all(job.title in note and str(tmp_path) in note for note in told)

    lock.release()
    assert list(lost.free()) == [(job, task, None)]
    assert not list(lost.free())  # each job once


def test_the_wait_for_a_lost_job_ends(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now[0])
    lost = attempts.Lost(60.0, lambda note: None)
    job = Job("job0", "ft", "digits", "", 0, config_of(), {})

    with files.lock_folder(tmp_path):
        lost.add(job, Task(tmp_path, job.layer))
        now[0] = 60.0
        [(_, _, outcome)] = lost.free()

    assert outcome.reason is not None
    assert "engine.wait_seconds" in outcome.reason
    assert str(tmp_path) in outcome.reason
