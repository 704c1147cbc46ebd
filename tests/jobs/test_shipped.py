"""Samples of jobs in memory that processes share: freed once, after the last job or at the end."""

from flbench.jobs.job import Job
from flbench.jobs.launchers.shipped import Store, StoredSamples
from flbench.jobs.samples import LoadedSamples
from tests.support import SMALL, config_of


def job(seed):
    config = config_of(*SMALL, f"seed={seed}")
    return Job(f"job{seed}", "ft", "", "", seed, config, {})


def test_samples_are_freed_once_after_the_last_job_or_when_a_run_is_interrupted():
    freed = []
    jobs = [job(0), job(1)]

    def opened():
        def share(array):
            return StoredSamples(len(array), free=lambda: freed.append(len(array)))

        store = Store(jobs, LoadedSamples(), share)
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
