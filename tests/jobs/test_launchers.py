"""Jobs in workers: their data in shared memory, and what happens when a worker is lost."""

import pytest

from flbench.core import files
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers import attempts
from flbench.jobs.launchers.attempts import Lost
from flbench.jobs.launchers.pooled import Pooled
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from flbench.workers.pool import Ended
from tests.support import SMALL, config_of


def job(seed):
    config = config_of(*SMALL, f"seed={seed}")
    return Job(f"job{seed}", "ft", "", "", seed, config, {})


def store_of(jobs, freed):
    """A store whose samples note their size when they are freed."""

    def share(array):
        return StoredSamples(len(array), free=lambda: freed.append(len(array)))

    return Store(jobs, LoadedSamples(), share)


def test_samples_are_freed_once_after_the_last_job_or_when_a_run_is_interrupted():
    freed, jobs = [], [job(0), job(1)]

    def opened():
        store = store_of(jobs, freed)
        sent = [store.ship(one).samples for one in jobs]
        assert sent[0] == sent[1]  # one copy for both partitions
        return store

    whole = opened()
    whole.release(jobs[0])
    assert not freed
    whole.release(jobs[1])
    whole.close()
    assert len(freed) == 1

    interrupted = opened()
    interrupted.release(jobs[0])
    interrupted.close()
    assert len(freed) == 2


class Losing:
    """A pool that loses some calls."""

    def __init__(self, losses):
        self.left, self.calls = losses, []

    def submit(self, key, *rest):
        self.calls.append(key)

    def ended(self, seconds):
        self.left -= 1
        lost = "it died." if self.left >= 0 else None
        return [Ended(self.calls[-1], Outcome(None), lost)]


@pytest.mark.parametrize(("losses", "reason"), [(2, None), (3, "it died.")])
def test_a_job_is_begun_again_as_often_as_the_user_allows(losses, reason):
    told, freed, one = [], [], job(0)
    pool = Losing(losses)
    launcher = Pooled(1, pool, store_of([one], freed), Lost(2, 60.0, told.append))

    launcher.begin(one, Task(None, one.layer))
    while not (found := list(launcher.ended())):
        assert not freed

    [(ended, outcome)] = found
    assert ended is one
    assert outcome.reason is None if reason is None else reason in outcome.reason
    assert len(pool.calls) == 3
    assert [one.title in note for note in told] == [True, True]
    assert len(freed) == 1


def test_a_lost_job_waits_for_the_process_that_still_writes_to_its_folder(tmp_path, monkeypatch):
    now, told, one = [0.0], [], job(0)
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now[0])
    lost, task = Lost(2, 60.0, told.append), Task(tmp_path, one.layer)
    lock = files.lock_folder(tmp_path)

    lost.add(one, task, "it died.")
    told.clear()
    for now[0] in (1.0, 5.0, 22.0, 30.0, 45.0):
        assert not list(lost.free())
    assert len(told) == 3
    assert all(one.title in note and str(tmp_path) in note for note in told)

    lock.release()
    assert list(lost.free()) == [(one, task, None)]
    assert not list(lost.free())  # each job once

    with files.lock_folder(tmp_path):  # this wait ends, too
        lost.add(one, task, "it died.")
        now[0] += 60.0
        [(_, _, outcome)] = lost.free()
    assert "engine.wait_seconds" in outcome.reason
