"""Optuna's sampler: batches, the history that it gets, and that it learns."""

import math

import optuna
import pytest

from flbench.tuning.samplers import Observation, RandomSampler
from flbench.tuning.tpe import OptunaSampler
from tests.tuning.support import space_of

pytest.importorskip("optuna")

SPACE = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 1.0]}",
    "algorithm.tau: {uniform: [0.0, 1.0]}",
    "train.clip: {uniform: [0.1, 0.7]}",
    "algorithm.lambda0: {int: [1, 9]}",
)
DEFAULTS = {
    "train.optimizer.lr": 1.0,
    "algorithm.tau": 1.0,
    "train.clip": None,
    "algorithm.lambda0": 9,
}


def score(params) -> float:
    """A paraboloid; its top is 0 at lr 0.03, tau 0.3, top_frac 0.3, ema 3."""
    return -(
        (math.log10(params["train.optimizer.lr"] / 0.03) / 3) ** 2
        + (params["algorithm.tau"] - 0.3) ** 2
        + ((params["train.clip"] or 0.7) - 0.3) ** 2
        + ((params["algorithm.lambda0"] - 3) / 9) ** 2
    )


def search(proposer, trials: int, batch: int) -> list[Observation]:
    history: list[Observation] = []
    while len(history) < trials:
        proposed = proposer.propose(history, min(batch, trials - len(history)))
        history += [Observation(params, "finished", score(params), 9) for params in proposed]
    return history


def test_batch_is_what_runs_at_once():
    assert OptunaSampler(SPACE, DEFAULTS, 0, 20).batch(3) == 3


def test_first_trials_are_those_of_the_random_search():
    random = RandomSampler(SPACE, DEFAULTS, 0).propose([], 20)

    found = [seen.params for seen in search(OptunaSampler(SPACE, DEFAULTS, 0, 18), 20, 4)]

    assert found[:6] == random[:6]
    assert not any(params in random for params in found[6:])


@pytest.mark.slow
def test_learns_where_random_does_not():
    """After 40 trials the best is nearer to the top than random's, on average over ten seeds."""

    def loss(proposer) -> float:
        return -max(seen.score for seen in search(proposer, 40, 2))

    seeds = range(10)
    tpe = [loss(OptunaSampler(SPACE, DEFAULTS, seed, 40)) for seed in seeds]
    random = [loss(RandomSampler(SPACE, DEFAULTS, seed)) for seed in seeds]

    assert sum(tpe) < sum(random)


def test_later_trials_are_better_than_the_first_ones():
    history = search(OptunaSampler(SPACE, DEFAULTS, 0, 40), 40, 2)

    mean = [sum(seen.score for seen in part) / 10 for part in (history[:10], history[-10:])]
    assert mean[1] > mean[0] / 3


def test_trials_of_a_batch_differ():
    history = search(OptunaSampler(SPACE, DEFAULTS, 0, 12), 12, 12)

    proposed = OptunaSampler(SPACE, DEFAULTS, 0, 12).propose(history, 8)

    assert len({tuple(params.values()) for params in proposed}) == 8


@pytest.mark.parametrize("state", ["stopped", "diverged", "failed"])
def test_region_where_trials_do_not_finish_is_left(state):
    """tau > 0.5 never finishes: fewer than a quarter of the modelled trials go there."""
    history: list[Observation] = []
    proposer = OptunaSampler(SPACE, DEFAULTS, 1, 40)
    while len(history) < 40:
        for params in proposer.propose(history, 2):
            bad = params["algorithm.tau"] > 0.5
            # A stopped one has a high score, but not of the last round: finished ones count more.
            said = (state, 0.9 if state == "stopped" else None, 2) if bad else ("finished", 0.5, 9)
            history.append(Observation(params, *said))

    modelled = [seen.params["algorithm.tau"] for seen in history[proposer.startup :]]
    assert sum(tau > 0.5 for tau in modelled) < len(modelled) / 4


@pytest.mark.parametrize(
    "history",
    [
        [Observation(DEFAULTS, "failed")],
        [Observation(DEFAULTS, "finished", math.nan, 9)] * 6,
        [Observation({"algorithm.gone": 3}, "finished", 0.5, 9)] * 6,
        [Observation(DEFAULTS, "stopped", None, 0), Observation(DEFAULTS, "finished", 0.5, 9)] * 3,
    ],
)
def test_optuna_accepts_any_history(history):
    for params in OptunaSampler(SPACE, DEFAULTS, 0, 4).propose(history, 5)[1:]:
        assert params.keys() == SPACE.parameters.keys()
        assert all(SPACE.parameters[path].holds(value) for path, value in params.items())


def test_proposals_do_not_depend_on_defaults_of_optuna(monkeypatch):
    """They are those of a multivariate TPE, asked for by Optuna's own interface."""
    history = search(OptunaSampler(SPACE, DEFAULTS, 0, 12), 12, 12)
    found = OptunaSampler(SPACE, DEFAULTS, 0, 12).propose(history, 3)
    tpe = optuna.samplers.TPESampler

    class Other(tpe):
        def __init__(self, *, multivariate=False, constant_liar=False, **given):
            super().__init__(multivariate=multivariate, constant_liar=constant_liar, **given)

    def proposals(sampler):
        monkeypatch.setattr(optuna.samplers, "TPESampler", sampler)
        return OptunaSampler(SPACE, DEFAULTS, 0, 12).propose(history, 3)

    assert proposals(Other) == found
    assert proposals(lambda **given: tpe(**given | {"multivariate": True})) == found
    assert proposals(lambda **given: tpe(**given | {"multivariate": False})) != found
