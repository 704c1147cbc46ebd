"""The order of trainings: each method's trials, then its finals, in any order of their ends."""

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


def test_every_trial_and_final_comes_once():
    plan = StudyPlan({"a": Counting(), "b": Counting()}, Budget(3, 2, 7, 2))

    jobs = played(plan, itertools.repeat(0))

    names = [job.name for job in jobs]
    assert len(names) == len(set(names)) == 2 * (3 + 2 * 2)
    finals = [job for job in jobs if job.kind == "final"]
    assert {(job.method, job.variant, job.seed) for job in finals} == {
        (method, variant, seed)
        for method in "ab"
        for variant in ("default", "tuned")
        for seed in (8, 9)
    }
    assert {job.seed for job in jobs if job.kind == "search"} == {7}


@pytest.mark.parametrize(("first", "wanted"), [(None, {None}), (3, {4, 5})])
def test_finals_have_the_partitions_after_that_of_the_search(first, wanted):
    plan = StudyPlan({"a": Counting()}, Budget(3, 2, 7, 2, first))

    jobs = played(plan, itertools.repeat(0))

    assert {job.partition_seed for job in jobs if job.kind == "search"} == {None}
    finals = [job for job in jobs if job.kind == "final"]
    assert {job.partition_seed for job in finals} == wanted
    assert first is None or all(job.partition_seed - first == job.seed - 7 for job in finals)


def test_finals_train_the_winner_and_the_defaults():
    plan = StudyPlan({"a": Counting()}, Budget(4, 1, 0, 2))

    jobs = played(plan, itertools.repeat(0), score=lambda job: -((job.index - 2) ** 2))

    tuned = next(job for job in jobs if job.variant == "tuned")
    default = next(job for job in jobs if job.variant == "default")
    assert (tuned.index, tuned.params) == (2, {"train.optimizer.lr": 2})
    assert (default.index, default.params) == (0, {"train.optimizer.lr": 0})


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1, 1), (1, 0)])
def test_batches_do_not_depend_on_what_ends_first(order):
    def proposals(order):
        plan = StudyPlan({"a": Last(True), "b": Last(True)}, Budget(7, 1, 0, 2))
        jobs = played(plan, itertools.cycle(order))
        return sorted((job.name, tuple(job.params.items())) for job in jobs)

    assert proposals(order) == proposals((0,))


def test_resumed_plan_gives_what_has_not_ended_and_nothing_twice():
    samplers = {"a": Last(True)}
    budget = Budget(6, 1, 0, 2)
    straight = StudyPlan(samplers, budget)
    every = {job.name: job for job in played(straight, itertools.repeat(0))}
    first = StudyPlan(samplers, budget)
    jobs = [first.next(), first.next()]
    records = [ended(jobs[0], 0.0), ended(jobs[1], None, state="running")]

    rest = played(StudyPlan(samplers, budget, records), itertools.repeat(0))

    assert {job.name for job in rest} == set(every) - {jobs[0].name}
    assert all(job.params == every[job.name].params for job in rest)


def test_resumed_trial_keeps_its_latest_parameters():
    budget = Budget(2, 0, 0, 2)
    job = StudyPlan({"a": Counting()}, budget).next()
    changed = ended(job, None, state="running") | {"params": {"train.optimizer.lr": 0.5}}

    again = StudyPlan({"a": Counting()}, budget, [changed]).next()

    assert again.name == job.name
    assert again.params == {"train.optimizer.lr": 0.5}


def test_defaults_that_won_are_trained_again_once():
    plan = StudyPlan({"a": Counting()}, Budget(3, 2, 0, 2))

    jobs = played(plan, itertools.repeat(0), score=lambda job: -job.index)

    assert [job.variant for job in jobs if job.kind == "final"] == ["default", "default"]
    assert len(jobs) == 3 + 2


def test_method_without_a_winner_has_no_finals():
    plan = StudyPlan({"a": Counting()}, Budget(2, 3, 0, 2))

    for _ in range(2):
        plan.end(ended(plan.next(), None, state="failed"))

    assert plan.is_over()


def test_pass_over_some_jobs_ends_without_the_others():
    plan = StudyPlan({"a": Counting(), "b": Counting()}, Budget(2, 1, 0, 2))

    def of_a(job):
        return job.method == "a" and job.kind == "search" and job.index > 0

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
    jobs = [TrainingJob("a", "search", index, 0, {}) for index in range(3)]
    records = [ended(*item) for item in zip(jobs, scores, states, strict=True)]

    best = winner(records)

    assert (best and best.index) == expected


def test_default_finals_begin_when_no_trial_can():
    plan = StudyPlan({"a": Counting()}, Budget(3, 2, 0, 2))
    trials = [plan.next() for _ in range(3)]
    assert [job.kind for job in trials] == ["search"] * 3
    assert plan.next() is None  # the default trial has not ended

    plan.end(ended(trials[0], 0.1))
    early = [plan.next(), plan.next()]

    assert [(job.variant, job.seed) for job in early] == [("default", 1), ("default", 2)]
    assert plan.next() is None  # the winner is not known

    for trial, score in zip(trials[1:], (0.3, 0.2), strict=True):
        plan.end(ended(trial, score))
    assert [(job.variant, job.index) for job in (plan.next(), plan.next())] == [("tuned", 1)] * 2
    assert plan.next() is None


@pytest.mark.parametrize("state", ["diverged", "failed", "stopped"])
def test_finals_wait_for_the_search_if_the_default_trial_has_no_result(state):
    plan = StudyPlan({"a": Counting()}, Budget(2, 1, 0, 2))
    trials = [plan.next(), plan.next()]

    plan.end(ended(trials[0], None, state=state))
    assert plan.next() is None

    plan.end(ended(trials[1], 0.2))
    assert [plan.next().variant for _ in range(2)] == ["default", "tuned"]


def test_default_finals_do_not_begin_while_a_sampler_waits_for_results():
    plan = StudyPlan({"a": Last(True)}, Budget(4, 1, 0, 2))
    first = [plan.next(), plan.next()]
    assert plan.next() is None

    plan.end(ended(first[0], 0.1))
    assert plan.next() is None  # two trials are not proposed yet

    plan.end(ended(first[1], 0.2))
    last = [plan.next(), plan.next()]
    assert [job.kind for job in last] == ["search"] * 2
    assert plan.next().variant == "default"
