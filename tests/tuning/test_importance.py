import random

import pytest

from flbench.results import study_folder
from flbench.tuning.importance import ENOUGH, importance
from flbench.tuning.search_space import parse
from tests.installed import needs
from tests.tuning.studies import DEFAULTS, SPACE, begin, trial

pytestmark = needs("optuna")


def found(path, params, score, trials=24, space=SPACE):
    """Return the importances of a study whose trials' parameters and scores are given."""
    study = begin(path / "study", "hfcd", space=space)
    for k in range(trials):
        chosen = params(k)
        trial(study, "hfcd", k, score(chosen), params=chosen)
    lines = study_folder.read(study).trials
    axes = parse({"method": "hfcd", "space": space}, {}, "test").parameters
    return importance([*axes.values()], lines)


def drawn(k):
    draw = random.Random(k)
    return {
        "algorithm.tau": 10 ** draw.uniform(-2, 1),
        "algorithm.groups": draw.randint(2, 8),
        "algorithm.distance": draw.choice(["cosine", "l2"]),
        "train.optimizer.lr": 10 ** draw.uniform(-3, 0),
    }


def test_parameter_that_makes_the_score_comes_first(tmp_path):
    shares = found(tmp_path, drawn, lambda params: params["algorithm.groups"] / 8).shares

    assert next(iter(shares)) == "algorithm.groups"
    assert shares["algorithm.groups"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == set(SPACE)


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
