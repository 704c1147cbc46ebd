"""Successive halving by method: a slow reference, and who is never stopped."""

from types import SimpleNamespace

import numpy as np
import pytest

from flbench.tuning.plan import FACTOR, SearchSettings
from flbench.tuning.schedulers import EarlierScore, HalvingByMethod
from flbench.tuning.study import TrainingJob


def jobs_of(*methods, count=12):
    return {
        f"{method}{k}": TrainingJob(method, k, 0, {}) for method in methods for k in range(count)
    }


def report(scheduler, name, done, score):
    return scheduler.on_trial_result(
        None, SimpleNamespace(trial_id=name), {"round": done, "score": score}
    )


def reference(results, rungs):
    """Return the names that a rung stops: worse than the best third seen there so far."""
    seen, stopped = {rung: [] for rung in rungs}, set()
    for name, done, score in results:
        if name in stopped or done not in rungs:
            continue
        if seen[done] and score < np.percentile(seen[done], (1 - 1 / FACTOR) * 100):
            stopped.add(name)
        seen[done].append(score)
    return stopped


def results_of(names, seed=0, rounds=9):
    rng = np.random.default_rng(seed)
    level = rng.random(len(names))
    return [
        (name, done, float(level[k] * (1 - 0.5**done)))
        for done in range(1, rounds + 1)
        for k, name in enumerate(names)
    ]


def test_halving_stops_what_a_slow_reference_stops():
    jobs = jobs_of("a")
    scheduler = HalvingByMethod(jobs, rounds=9, grace=1)
    results = results_of(list(jobs))

    stopped: set[str] = set()
    for name, done, score in results:
        if name not in stopped and report(scheduler, name, done, score) == "STOP" and done < 9:
            stopped.add(name)

    wanted = reference(results, (1, 3, 9))
    assert stopped - {"a0"} == wanted - {"a0"}
    assert wanted


@pytest.mark.parametrize(
    ("rounds", "every", "rungs"),
    [(12, 1, (4,)), (12, 5, (5,)), (10, 1, (4,)), (15, 1, (5,)), (27, 2, (10,)), (2, 2, ())],
)
def test_first_rung_is_at_a_third_of_the_rounds(rounds, every, rungs):
    settings = SearchSettings("accuracy", "personal", "asha", rounds, every, 0)
    jobs = jobs_of("a", count=10)
    scheduler = HalvingByMethod(jobs, rounds=rounds, grace=settings.grace)
    evaluated = [*range(every, rounds, every), rounds]

    reached = {}
    for k in range(1, 10):
        for done in evaluated:
            reached[k] = done
            if report(scheduler, f"a{k}", done, 1 - k / 10) == "STOP":
                break

    # The best one comes first: no other one is in the best third.
    last = rungs[0] if rungs else rounds
    assert list(reached.values()) == [rounds] + [last] * 8
    assert all(3 * rung >= rounds for rung in rungs)


def test_methods_do_not_stop_each_other():
    jobs = jobs_of("a", "b", count=4)
    scheduler = HalvingByMethod(jobs, rounds=9, grace=1)

    for k in range(4):
        report(scheduler, f"a{k}", 1, 0.9)

    assert all(report(scheduler, f"b{k}", 1, 0.1 + 0.01 * k) == "CONTINUE" for k in range(4))


def test_default_parameters_run_to_the_end():
    jobs = jobs_of("a")
    scheduler = HalvingByMethod(jobs, rounds=9, grace=1)
    for k in range(1, 9):
        report(scheduler, f"a{k}", 1, 0.9)

    assert report(scheduler, "a0", 1, 0.0) == "CONTINUE"
    assert report(scheduler, "a9", 1, 0.0) == "STOP"


def test_resumed_halving_decides_as_a_straight_one():
    jobs = jobs_of("a")
    results = results_of(list(jobs), seed=3)
    half = len(results) // 2

    def run(scheduler, results, stopped):
        decisions = {}
        for name, done, score in results:
            if name not in stopped:
                decisions[name, done] = report(scheduler, name, done, score)
                if decisions[name, done] == "STOP":
                    stopped.add(name)
        return decisions

    stopped: set[str] = set()
    straight = HalvingByMethod(jobs, rounds=9, grace=1)
    before = run(straight, results[:half], stopped)
    after = run(straight, results[half:], set(stopped))
    seen = [
        EarlierScore(jobs[name], done, score)
        for name, done, score in results[:half]
        if (name, done) in before
    ]
    ids = {f"new-{name}": job for name, job in jobs.items()}
    resumed = HalvingByMethod(ids, rounds=9, grace=1, seen=seen)
    again = run(
        resumed,
        [(f"new-{name}", done, score) for name, done, score in results[half:]],
        {f"new-{name}" for name in stopped},
    )

    assert {
        (name.removeprefix("new-"), done): said for (name, done), said in again.items()
    } == after


def test_trial_whose_driver_died_before_it_could_stop_it_is_stopped():
    jobs = jobs_of("a")
    seen = [EarlierScore(jobs[f"a{k}"], 1, 0.9) for k in range(1, 9)] + [
        EarlierScore(jobs["a9"], 1, 0.1)
    ]

    resumed = HalvingByMethod(jobs, rounds=9, grace=1, seen=seen)

    assert report(resumed, "a9", 2, 0.1) == "STOP"
    assert report(resumed, "a8", 2, 0.9) == "CONTINUE"
