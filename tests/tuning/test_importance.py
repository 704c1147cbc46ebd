import math
import random

import pytest

from flbench.results import study_folder
from flbench.tuning.importance import ENOUGH, at_first_rung, importance
from flbench.tuning.search_space import parse
from tests.installed import needs
from tests.tuning.studies import DEFAULTS, SPACE, begin, evaluated, trial

pytestmark = needs("optuna")


@pytest.fixture(autouse=True)
def _permutations(monkeypatch):
    monkeypatch.setattr("flbench.tuning.importance.PERMUTATIONS", 39)


def found(path, params, score, trials=24, space=SPACE):
    """Return the importances of a study whose trials' parameters and scores are given."""
    study = begin(path / "study", "hfcd", space=space)
    for k in range(trials):
        chosen = params(k)
        trial(study, "hfcd", k, score(chosen), params=chosen)
    lines = study_folder.read(study).trials
    axes = parse({"method": "hfcd", "space": space}, {}, "test").parameters
    return importance([*axes.values()], lines, {one.index: one.score for one in lines})


def drawn(k):
    draw = random.Random(k)
    return {
        "algorithm.tau": 10 ** draw.uniform(-2, 1),
        "algorithm.groups": draw.randint(2, 8),
        "algorithm.distance": draw.choice(["cosine", "l2"]),
        "train.optimizer.lr": 10 ** draw.uniform(-3, 0),
    }


def test_parameter_that_makes_the_score_comes_first(tmp_path):
    shares, _, p, chance = found(tmp_path, drawn, lambda params: params["algorithm.groups"] / 8)

    assert next(iter(shares)) == "algorithm.groups"
    assert shares["algorithm.groups"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == set(SPACE)
    assert p["algorithm.groups"] == 1 / 40  # no permutation comes near
    assert chance["algorithm.groups"] < shares["algorithm.groups"]


@pytest.mark.slow
def test_p_is_seldom_small_for_scores_without_an_effect(tmp_path):
    """Of 4 parameters in 3 studies with random scores, about one in 20 has p <= 0.05."""
    low = 0
    for seed in range(3):
        scores = iter(random.Random(100 + seed).sample(range(1000), 24))
        p = found(tmp_path / str(seed), drawn, lambda _, left=scores: next(left) / 1000).p
        low += sum(value <= 0.05 for value in p.values())

    assert low <= 3  # more have a probability of 0.002


def test_scores_are_those_of_the_last_round_that_all_trials_have_reached(tmp_path):
    study = begin(tmp_path / "study", "hfcd", trials=4, rounds=6)
    for k, (done, state) in enumerate(
        ((6, "finished"), (2, "stopped"), (6, "finished"), (1, "failed"))
    ):
        trial(study, "hfcd", k, 0.9, state=state, round=done, rounds=6)
        evaluated(study, "hfcd", k, {n: 0.1 * k + n / 100 for n in range(1, done + 1)})

    number, scores = at_first_rung(study_folder.read(study), "hfcd")

    assert number == 2
    assert scores == {0: pytest.approx(0.02), 1: 0.9, 2: pytest.approx(0.22)}


def test_score_that_is_not_finite_is_left_out(tmp_path):
    """A model can diverge at an evaluation and come back: its trial has a score, but not there."""
    study = begin(tmp_path / "study", "hfcd", trials=3, rounds=2)
    for k, first in enumerate((0.0, math.nan)):
        trial(study, "hfcd", k, 0.9, round=2, rounds=2)
        evaluated(study, "hfcd", k, {1: first, 2: 0.9})
    trial(study, "hfcd", 2, 0.2, round=1, rounds=2, state="stopped")
    evaluated(study, "hfcd", 2, {1: 0.2})

    assert at_first_rung(study_folder.read(study), "hfcd") == (1, {0: 0.0, 2: 0.2})


def test_few_trials_give_no_importance(tmp_path):
    few = found(tmp_path, drawn, lambda params: params["algorithm.tau"], trials=ENOUGH - 1)

    assert few.shares == {}
    assert f"{ENOUGH - 1}" in few.why


def test_conditional_and_fixed_parameters_are_left_out(tmp_path):
    space = {**SPACE, "train.clip": {"fixed": 1.0}}

    def params(k):
        chosen = drawn(k) | {"train.clip": 1.0}
        if chosen["algorithm.distance"] == "l2":
            del chosen["algorithm.tau"]
        return chosen

    shares = found(tmp_path, params, lambda params: params["algorithm.groups"] / 8, space=space)

    assert set(shares.shares) == {"algorithm.groups", "algorithm.distance", "train.optimizer.lr"}
    for path in ("algorithm.tau", "train.clip"):
        assert path in shares.why


def test_default_outside_its_range_costs_a_trial_and_no_parameter(tmp_path):
    def params(k):
        return drawn(k) | ({"train.optimizer.lr": None} if k == 0 else {})

    shares = found(tmp_path, params, lambda params: params["algorithm.groups"] / 8).shares

    assert set(shares) == set(SPACE)


def test_equal_scores_and_equal_trials_give_no_importance(tmp_path):
    assert "same score" in found(tmp_path / "a", drawn, lambda _: 0.5).why

    scores = iter(range(24))
    same = found(tmp_path / "b", lambda _: DEFAULTS, lambda _: next(scores))
    assert same.shares == {}
    assert "varies" in same.why
