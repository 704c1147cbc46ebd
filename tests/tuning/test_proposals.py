"""What Optuna proposes follows from the seed and the results alone."""

import json
import math

import numpy as np
import optuna
import pytest

from flbench.core.errors import ConfigError
from flbench.results.study_folder import Trial
from flbench.tuning.proposals import Proposals
from flbench.tuning.search_space import Space
from tests.tuning.support import space_of

SPACE = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 1.0]}",
    "algorithm.tau: {uniform: [0.0, 1.0]}",
    "train.clip: {uniform: [0.1, 0.7]}",
    "algorithm.share: {choice: [none, body, full]}",
    "algorithm.lambda0: {int: [1, 9], when: {algorithm.share: [body, full]}}",
)
DEFAULTS = {
    "train.optimizer.lr": 1.0,
    "algorithm.tau": 1.0,
    "train.clip": None,
    "algorithm.share": "none",
}
SEARCHES = ("random", "grid", "optuna")


def of(search, space=SPACE, defaults=DEFAULTS, *, seed=0, trials=500, batch=2):
    return Proposals(search, space, defaults, seed=seed, trials=trials, batch=batch)


def score(params):
    """A paraboloid; its top is 0 at lr 0.03, tau 0.3, clip 0.3."""
    return -(
        (math.log10(params["train.optimizer.lr"] / 0.03) / 3) ** 2
        + (params["algorithm.tau"] - 0.3) ** 2
        + ((params["train.clip"] or 0.7) - 0.3) ** 2
    )


def ended(params, state="finished", score=None, done=9):
    return Trial("hfcd", 0, 0, params, state, None, done, 9, score, None, None, None)


def finished(params):
    return ended(params, score=score(params))


def searched(proposals, result=finished, known=None, order=None):
    """Return the parameters of all trials; those of a batch end in a random order."""
    records, rng = dict(known or {}), np.random.default_rng(order)
    while left := [k for k in range(len(proposals.given(records))) if k not in records]:
        k = left[0] if order is None else int(rng.choice(left))
        records[k] = result(proposals.given(records)[k])
    return [one for _, one in sorted(records.items())]


def params_of(records):
    return [record.params for record in records]


@pytest.mark.parametrize("search", SEARCHES)
def test_trial_zero_is_the_default_one_and_the_others_are_plain_values(search):
    found = params_of(searched(of(search, trials=300 if search == "grid" else 30, batch=3)))

    assert found[0] == DEFAULTS
    for params in found[1:]:
        assert json.loads(json.dumps(params)) == params
        assert params == SPACE.assign(lambda one, p=params: p[one.path])
        assert all(SPACE.parameters[path].holds(value) for path, value in params.items())
        assert ("algorithm.lambda0" in params) == (params["algorithm.share"] != "none")


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_resumed_search_proposes_what_a_straight_one_does(search):
    """Whatever has ended when it was interrupted, and whatever ends first."""
    whole = searched(of(search, trials=15, batch=3))

    for count in (1, 3, 7, 14):
        known = dict(enumerate(whole[:count]))
        assert searched(of(search, trials=15, batch=3), known=known, order=count) == whole


def test_learning_search_waits_for_a_batch_whose_trials_differ():
    one = {0: ended({}, "running", done=0)}
    assert len(of("optuna", trials=9, batch=4).given(one)) == 4
    assert len(of("random", trials=9, batch=4).given(one)) == 9
    known = dict(enumerate(searched(of("optuna", trials=12, batch=12))))

    found = of("optuna", trials=20, batch=12).given(known)[12:]

    assert len({tuple(params.values()) for params in found}) == len(found) == 8


def test_random_differs_between_seeds_methods_and_trials():
    other = Space("fedavg", SPACE.parameters, "test")
    trials = [
        *of("random", trials=20).given({})[1:],
        *of("random", trials=20, seed=1).given({})[1:],
        *of("random", other, trials=20).given({})[1:],
    ]

    assert len({json.dumps(params) for params in trials}) == len(trials) == 57
    assert of("random", trials=9).given({}) == of("random", trials=20).given({})[:9]


def test_grid_is_the_product_without_the_defaults_and_the_rest_is_random():
    space = space_of("algorithm.share: {choice: [none, body, full]}")
    defaults = {"algorithm.share": "body"}

    found = [one["algorithm.share"] for one in of("grid", space, defaults, trials=6).given({})]

    assert found[:3] == ["body", "none", "full"]
    assert set(found[3:]) <= {"none", "body", "full"}
    with pytest.raises(ConfigError, match=r"`trials`.*algorithm\.share 3"):
        of("grid", space, defaults, trials=2)


@pytest.mark.slow
def test_learning_search_finds_more_than_a_random_one():
    """After 40 trials the best is nearer to the top than random's, on average over ten seeds."""

    def loss(search, seed):
        return -max(one.score for one in searched(of(search, seed=seed, trials=40)))

    seeds = range(10)
    assert sum(loss("optuna", k) for k in seeds) < sum(loss("random", k) for k in seeds)


@pytest.mark.parametrize("state", ["stopped", "diverged", "failed", "finished"])
def test_region_where_trials_do_not_finish_is_left(state):
    """tau > 0.5 never finishes: fewer than a quarter of the modelled trials go there."""

    def result(params):
        if params["algorithm.tau"] <= 0.5:
            return ended(params, score=0.5)
        # A stopped one has a high score, but not of the last round: finished ones count more.
        return ended(params, state, 0.9 if state == "stopped" else None, done=2)

    taus = [one.params["algorithm.tau"] for one in searched(of("optuna", trials=40), result)]

    modelled = taus[10:]
    assert sum(tau > 0.5 for tau in modelled) < len(modelled) / 4


def test_what_proposals_depend_on_is_no_default_of_optuna(monkeypatch):
    asked, tpe = {}, optuna.samplers.TPESampler
    monkeypatch.setattr(
        optuna.samplers, "TPESampler", lambda **given: asked.update(given) or tpe(**given)
    )

    of("optuna", trials=15)

    wanted = {"multivariate": True, "constant_liar": True, "group": False}
    assert asked.items() >= (wanted | {"n_startup_trials": 5, "n_ei_candidates": 24}).items()
