"""A job whose machine is lost goes on when its old process writes no more."""

import pytest

from flbench.core import files
from flbench.jobs import training
from flbench.jobs.job import Job, Task
from tests.support import config_of


@pytest.mark.parametrize(("released", "waits"), [(3, 3), (1000, 60)])
def test_a_job_waits_for_the_process_that_still_writes_to_its_folder(
    tmp_path, monkeypatch, released, waits
):
    """For `engine.wait_seconds` at most; then the run finds that its folder is locked."""
    now, begun, lock = [0.0], [], files.lock_folder(tmp_path)

    def sleep(seconds):
        now[0] += seconds
        if now[0] >= released:
            lock.release()

    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training.time, "sleep", sleep)
    monkeypatch.setattr(training.lifecycle, "run", lambda *given, **more: begun.append(now[0]))
    job = Job("job0", "ft", "digits", "", 0, config_of("engine.wait_seconds=60"), {})

    training.train(Task(tmp_path, job.layer), None, (b"", b""))

    lock.release()
    assert begun == [waits]
