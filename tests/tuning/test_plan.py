"""The order of a study's trials, in any order of their ends."""

import itertools

import pytest

from flbench.tuning.plan import Budget, StudyPlan, winner
from flbench.tuning.study import TrainingJob


class Counting:
    """Proposes the index; in batches where asked to."""

    def __init__(self, batch=None):
        self._batch = batch

    def batch(self, concurrent):
        return self._batch and concurrent

    def propose(self, history, count):
        return [{"train.optimizer.lr": len(history) + k} for k in range(count)]


class Last(Counting):
    """Proposes the sum of the scores so far, so proposals show which scores it has received."""

    def propose(self, history, count):
        total = sum(item.score or 0 for item in history)
        return [{"sum": total, "index": len(history) + k} for k in range(count)]


def ended(job, score, state="finished"):
    return {**job.record(3), "state": state, "score": score, "round": 3}


def played(plan, order, score=lambda job: job.index / 10):
    """Carry out a plan with two jobs at once; `order` says which of the two ends first."""
    done, running = [], []
    while not plan.is_over():
        while len(running) < 2 and (job := plan.next()) is not None:
            running.append(job)
        assert running, "the plan waits for nothing"
        job = running.pop(next(order) % len(running))
        plan.end(ended(job, score(job)))
        done.append(job)
    return done


def test_every_trial_comes_once():
    plan = StudyPlan({"a": Counting(), "b": Counting()}, Budget(3, 7, 2))

    jobs = played(plan, itertools.repeat(0))

    names = [job.name for job in jobs]
    assert len(names) == len(set(names)) == 2 * 3
    assert {job.seed for job in jobs} == {7}


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1, 1), (1, 0)])
def test_batches_do_not_depend_on_what_ends_first(order):
    def proposals(order):
        plan = StudyPlan({"a": Last(True), "b": Last(True)}, Budget(7, 0, 2))
        jobs = played(plan, itertools.cycle(order))
        return sorted((job.name, tuple(job.params.items())) for job in jobs)

    assert proposals(order) == proposals((0,))


def test_resumed_plan_gives_what_has_not_ended_and_nothing_twice():
    samplers = {"a": Last(True)}
    budget = Budget(6, 0, 2)
    straight = StudyPlan(samplers, budget)
    every = {job.name: job for job in played(straight, itertools.repeat(0))}
    first = StudyPlan(samplers, budget)
    jobs = [first.next(), first.next()]
    records = [ended(jobs[0], 0.0), ended(jobs[1], None, state="running")]

    rest = played(StudyPlan(samplers, budget, records), itertools.repeat(0))

    assert {job.name for job in rest} == set(every) - {jobs[0].name}
    assert all(job.params == every[job.name].params for job in rest)


def test_resumed_trial_keeps_its_latest_parameters():
    budget = Budget(2, 0, 2)
    job = StudyPlan({"a": Counting()}, budget).next()
    changed = ended(job, None, state="running") | {"params": {"train.optimizer.lr": 0.5}}

    again = StudyPlan({"a": Counting()}, budget, [changed]).next()

    assert again.name == job.name
    assert again.params == {"train.optimizer.lr": 0.5}


def test_pass_over_some_jobs_ends_without_the_others():
    plan = StudyPlan({"a": Counting(), "b": Counting()}, Budget(2, 0, 2))

    def of_a(job):
        return job.method == "a" and job.index > 0

    job = plan.next(of_a)
    assert plan.next(of_a) is None
    assert not plan.is_over(of_a)
    plan.end(ended(job, 0.5))

    assert plan.is_over(of_a)
    assert not plan.is_over()
    assert plan.next().name == "trials/a/000"


@pytest.mark.parametrize(
    ("scores", "states", "expected"),
    [
        ((0.1, 0.3, 0.2), ("finished",) * 3, 1),
        ((0.3, 0.3, 0.2), ("finished",) * 3, 0),
        ((0.1, 0.9, 0.2), ("finished", "stopped", "finished"), 2),
        ((0.1, None, None), ("finished", "diverged", "failed"), 0),
        ((None, None, None), ("finished",) * 3, None),
    ],
)
def test_winner_is_the_best_that_ran_to_the_end(scores, states, expected):
    jobs = [TrainingJob("a", index, 0, {}) for index in range(3)]
    records = [ended(*item) for item in zip(jobs, scores, states, strict=True)]

    best = winner(records)

    assert (best and best.index) == expected
