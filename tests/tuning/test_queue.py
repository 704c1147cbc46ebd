"""How Ray Tune hears of trials, and what is written of those whose worker failed."""

from types import SimpleNamespace

import pytest

from flbench.tuning import run
from flbench.tuning.plan import Budget, StudyPlan
from flbench.tuning.queue import JobQueue
from flbench.tuning.study import StudyFolder, read_record, write_record
from tests.tuning.test_plan import Counting


@pytest.fixture
def queue(tmp_path):
    ended = []
    plan = StudyPlan({"a": Counting()}, Budget(2, 0, 2))
    made = JobQueue(
        tmp_path, plan, lambda job: True, ended.append, rounds=4, is_over=lambda: made.is_over
    )
    made.is_over = False
    made.study, made.ended, made.plan = tmp_path, ended, plan
    return made


def begun(queue, **changes):
    """What a worker writes of the trial `x` when it begins."""
    job = queue.jobs["x"]
    write_record(queue.study, job, job.record(4) | changes)
    return job


def test_trial_that_ended_is_left_as_its_worker_wrote_it(queue):
    assert queue.suggest("x") == {"params": {"train.optimizer.lr": 0}}
    job = begun(queue, state="diverged", reason="all of them", score=0.5, ended="now")

    queue.on_trial_complete("x", {})

    record = read_record(queue.study, job)
    assert (record["state"], record["reason"], record["ended"]) == (
        "diverged",
        "all of them",
        "now",
    )
    assert queue.ended == [record]


def test_trial_that_was_still_running_was_stopped(queue):
    queue.suggest("x")
    job = begun(queue, score=0.5, round=2)

    queue.on_trial_complete("x", {})

    record = read_record(queue.study, job)
    assert (record["state"], record["score"], record["round"]) == ("stopped", 0.5, 2)


@pytest.mark.parametrize("wrote", [True, False])
def test_trial_whose_worker_fails_for_good_is_failed_with_the_reason(queue, wrote):
    """It may have failed before it wrote anything."""
    queue.suggest("x")
    if wrote:
        begun(queue, score=0.5)

    queue.count_retry("x")
    queue.on_trial_complete("x", None, error=True)
    queue.record_reason("x", "OSError: no space left")

    record = read_record(queue.study, queue.jobs["x"])
    assert (record["state"], record["reason"]) == ("failed", "OSError: no space left")
    assert (record["attempts"], record["rounds"]) == (2, 4)
    assert queue.ended == [record]
    assert queue.plan.ended() == [record]


@pytest.mark.parametrize(
    ("reasons", "states", "wanted"),
    [
        (["the memory of the machine was full"] * 2, ["running", "running"], "--jobs 3"),
        (["its machine has ended", "no space left"], ["running", "running"], ""),
        (["no space left", None], ["failed", "finished"], None),
    ],
)
def test_a_resumed_study_trains_again_what_it_has_lost(tmp_path, reasons, states, wanted):
    """With half as many at once after a lack of memory; never where a method has a winner."""
    (tmp_path / "study.json").write_text("{}")
    plan = StudyPlan({"a": Counting()}, Budget(2, 0, 7))
    made = JobQueue(
        tmp_path, plan, lambda job: True, lambda record: None, rounds=4, is_over=lambda: False
    )
    for name, reason in zip("xy", reasons, strict=True):
        made.suggest(name)
        job = made.jobs[name]
        if reason is None:
            write_record(tmp_path, job, job.record(4) | {"state": "finished", "score": 0.5})
        made.on_trial_complete(name, None, error=reason is not None)
        if reason is not None:
            made.record_reason(name, reason)
    folder = StudyFolder(tmp_path)
    prepared = SimpleNamespace(resources=SimpleNamespace(concurrent=7))
    in_python = StudyFolder(tmp_path, "fl.resume('a')")

    called = run.how_to_resume(in_python, prepared)
    command = run.how_to_resume(folder, prepared)
    run.begin_again(folder)

    assert command == (
        wanted if wanted is None else f"flbench tune --resume {tmp_path} {wanted}".strip()
    )
    assert called == (wanted if wanted is None else f"fl.resume('a'{', jobs=3' if wanted else ''})")
    assert [record["state"] for record in folder.records()] == states
    resumed = StudyPlan({"a": Counting()}, Budget(2, 0, 7), folder.records())
    assert resumed.is_over() == (wanted is None)
    assert run.how_to_resume(folder, prepared) is None


def test_worker_that_fails_because_the_study_stops_is_not_a_failure(queue):
    """The resumed study continues the trial."""
    queue.suggest("x")
    job = begun(queue, score=0.5)
    before = read_record(queue.study, job)
    queue.is_over = True

    queue.on_trial_complete("x", None, error=True)
    queue.record_reason("x", "its worker process died")

    assert read_record(queue.study, job) == before
    assert before["state"] == "running"
    assert queue.ended == []
    assert queue.plan.ended() == []


def test_failure_after_the_end_does_not_change_what_was_found(queue):
    queue.suggest("x")
    job = begun(queue, state="finished", score=0.5, ended="now")

    queue.on_trial_complete("x", None, error=True)
    queue.record_reason("x", "its node went away")

    assert read_record(queue.study, job)["state"] == "finished"


def test_search_is_finished_when_all_have_ended_and_waits_before(queue):
    queue.suggest("x")
    queue.suggest("y")

    assert queue.suggest("z") is None
    for name in ("x", "y"):
        queue.on_trial_complete(name, {})
    assert queue.suggest("z") == queue.FINISHED
