"""Samplers: what they propose follows from the seed and the history alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.core.errors import ConfigError
from flbench.tuning.samplers import GridSampler, Observation, RandomSampler
from flbench.tuning.search_methods import NAMES, sampler
from flbench.tuning.search_space import Space
from tests.tuning.support import NO_CLOCK, space_of

SPACE = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.tau: {uniform: [0.1, 1.0]}",
    "train.clip: {choice: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}",
    "algorithm.share: {choice: [none, body, full]}",
    "algorithm.lambda0: {uniform: [0.0, 0.5], when: {algorithm.share: [body, full]}}",
    "algorithm.loss_form: {fixed: nested}",
)
DEFAULTS = {
    "train.optimizer.lr": 0.01,
    "algorithm.tau": 0.2,
    "train.clip": None,
    "algorithm.share": "none",
    "algorithm.loss_form": "separate",
}


def ended(trials: list[dict]) -> list[Observation]:
    """A history of trials with a score of their own."""
    return [Observation(p, "finished", -abs(p["train.optimizer.lr"] - 0.05), 15) for p in trials]


def of(name: str, space: Space = SPACE, seed: int = 0, trials: int = 500):
    return sampler(name, space, DEFAULTS, seed=seed, trials=trials)


def straight(proposer, trials: int, batch: int) -> list[dict]:
    """All trials of a search that asks for `batch` at once."""
    found: list[dict] = []
    while len(found) < trials:
        found += proposer.propose(ended(found), min(batch, trials - len(found)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_trial_zero_is_the_default_one(name):
    assert of(name).propose([], 3)[0] == DEFAULTS


@pytest.mark.parametrize("name", NAMES)
def test_proposals_are_plain_values_of_active_parameters(name):
    for params in straight(of(name), 30, 3)[1:]:
        assert json.loads(json.dumps(params)) == params
        assert params == SPACE.assign(lambda one, p=params: p[one.path])
        assert all(SPACE.parameters[path].holds(value) for path, value in params.items())
        assert ("algorithm.lambda0" in params) == (params["algorithm.share"] != "none")
        assert params["algorithm.loss_form"] == "nested"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 3])
def test_resumed_search_proposes_what_a_straight_one_does(name, batch):
    """A new sampler that is given the history of whole batches goes on alike."""
    whole = straight(of(name), 15, batch)

    for first in range(0, 15, batch):
        resumed = of(name).propose(ended(whole[:first]), batch)
        assert resumed == whole[first : first + batch]


@pytest.mark.parametrize("name", ["random", "grid"])
@NO_CLOCK
@given(cuts=st.lists(st.integers(1, 7), min_size=1, max_size=9))
@pytest.mark.slow
def test_without_a_batch_the_trials_do_not_depend_on_the_number_requested(name, cuts):
    proposer = of(name)
    assert proposer.batch(4) is None

    found: list[dict] = []
    for count in cuts:
        found += proposer.propose(ended(found), count)

    assert found == of(name).propose([], sum(cuts))


def test_random_differs_between_seeds_methods_and_trials():
    other = Space("fedavg", SPACE.parameters, "test")
    trials = [
        *of("random").propose([], 20)[1:],
        *of("random", seed=1).propose([], 20)[1:],
        *of("random", other).propose([], 20)[1:],
    ]

    assert len({json.dumps(params) for params in trials}) == len(trials) == 57


def test_random_covers_the_space_evenly():
    """600 draws in ten equal cells: 60 each, standard deviation 7.3; five of these are allowed."""
    drawn = RandomSampler(SPACE, DEFAULTS, 0).propose([], 601)[1:]

    cells = [int((params["algorithm.tau"] - 0.1) / 0.9 * 10) for params in drawn]

    assert all(abs(cells.count(cell) - 60) < 37 for cell in range(10))


def test_grid_does_not_try_the_defaults_twice():
    space = space_of("algorithm.share: {choice: [none, body, full]}")

    found = GridSampler(space, {"algorithm.share": "body"}, 0, 3).propose([], 3)

    assert [params["algorithm.share"] for params in found] == ["body", "none", "full"]


def test_grid_beyond_the_budget_is_an_error_that_counts_it():
    space = space_of("algorithm.tau: {uniform: [0.1, 0.5]}", "algorithm.gamma: {uniform: [1, 2]}")

    with pytest.raises(ConfigError, match=r"9 comb.*needs 10"):
        of("grid", space, trials=9)
