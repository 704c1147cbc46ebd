"""The executor trains jobs by any launcher: here one that trains nothing and ends jobs at will."""

import pytest

from flbench.core.errors import ConfigError, RunError
from flbench.jobs import executor
from flbench.jobs.job import Job, Outcome, Task
from tests.support import config_of


def jobs(count):
    return [Job(f"job{k}", "ft", "", "", k, config_of(), {}) for k in range(count)]


class Recorded:
    """A plan and a launcher that note what happens; the last job that began ends first."""

    def __init__(self, at_once, refused=()):
        self.at_once, self.refused = at_once, refused
        self.events, self.running, self.most = [], [], 0

    def task(self, job):
        if job.name in self.refused:
            raise ConfigError(f"no  such\nkey in {job.name}")
        return Task(None, job.layer)

    def begin(self, job, task=None):
        if task is None:
            self.events.append(("begin", job.name))
            return
        self.running.append(job)
        self.most = max(self.most, len(self.running))

    def ended(self):
        yield self.running.pop(), Outcome(None)

    def end(self, job, outcome):
        self.events.append(("end", job.name, outcome.reason))


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_each_job_ends_once_and_no_more_run_than_the_launcher_says(at_once):
    found = Recorded(at_once)
    asked = jobs(5)

    executor.carry_out(asked, found, found.task, found.begin, found.end)

    begun = [name for kind, name, *_ in found.events if kind == "begin"]
    ended = [name for kind, name, *_ in found.events if kind == "end"]
    assert begun == [job.name for job in asked]
    assert sorted(ended) == begun
    assert found.most == min(at_once, 5)


def test_a_job_that_is_refused_ends_with_the_reason_and_the_others_go_on():
    refused = ("job1", "job2")
    found = Recorded(2, refused)

    executor.carry_out(jobs(3), found, found.task, found.begin, found.end)

    reasons = {name: rest[0] for kind, name, *rest in found.events if kind == "end"}
    wanted = {f"job{k}": None for k in range(3)}
    assert reasons == wanted | {name: f"no such key in {name}" for name in refused}


def test_the_next_job_is_taken_when_it_can_begin():
    """Whether a job is left may depend on those before it."""
    found = Recorded(1)

    def left():
        for job in jobs(3):
            assert sum(event[0] == "end" for event in found.events) == job.repetition
            yield job

    executor.carry_out(left(), found, found.task, found.begin, found.end)

    assert len(found.events) == 6


def test_an_error_of_the_plan_ends_all():
    found = Recorded(1)

    def fail(job, outcome):
        raise RunError("the disk is full")

    found.end = fail

    with pytest.raises(RunError, match="disk is full"):
        executor.carry_out(jobs(3), found, found.task, found.begin, found.end)
    assert len(found.events) == 1
