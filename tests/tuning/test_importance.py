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
    shares, _, p = found(tmp_path, drawn, lambda params: params["algorithm.groups"] / 8)

    assert next(iter(shares)) == "algorithm.groups"
    assert shares["algorithm.groups"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == set(SPACE)
    assert p["algorithm.groups"] == 1 / 40  # no permutation comes near


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
    """Scores that are not finite are left out: a model can diverge and come back."""
    study = begin(tmp_path / "study", "hfcd", trials=4, rounds=6)
    for k, (done, state) in enumerate(
        ((6, "finished"), (2, "stopped"), (6, "finished"), (1, "failed"), (6, "finished"))
    ):
        trial(study, "hfcd", k, 0.9, state=state, round=done, rounds=6)
        scores = {n: 0.1 * k + n / 100 for n in range(1, done + 1)}
        evaluated(study, "hfcd", k, scores | ({2: math.nan} if k == 4 else {}))

    number, scores = at_first_rung(study_folder.read(study), "hfcd")

    assert number == 2
    assert scores == {0: pytest.approx(0.02), 1: 0.9, 2: pytest.approx(0.22)}


def test_parameters_that_trials_lack_or_do_not_vary_are_left_out(tmp_path):
    """A default outside its range costs its trial, and no parameter."""
    space = {**SPACE, "train.clip": {"choice": [1.0, 2.0]}}

    def params(k):
        chosen = drawn(k) | {"train.clip": 1.0}
        if chosen["algorithm.distance"] == "l2":
            del chosen["algorithm.tau"]
        return chosen | ({"train.optimizer.lr": None} if k == 0 else {})

    shares = found(tmp_path, params, lambda params: params["algorithm.groups"] / 8, space=space)

    assert set(shares.shares) == {"algorithm.groups", "algorithm.distance", "train.optimizer.lr"}
    for path in ("algorithm.tau", "train.clip"):
        assert path in shares.why


def test_few_trials_equal_scores_and_equal_parameters_give_no_importance(tmp_path):
    scores = iter(range(24))
    for k, (params, score, trials) in enumerate(
        (
            (drawn, lambda params: params["algorithm.tau"], ENOUGH - 1),
            (drawn, lambda _: 0.5, 24),
            (lambda _: DEFAULTS, lambda _: next(scores), 24),
        )
    ):
        none = found(tmp_path / str(k), params, score, trials=trials)
        assert none.shares == {}
        assert none.why
