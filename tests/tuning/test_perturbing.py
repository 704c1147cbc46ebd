"""The explore step of PBT stays inside the space and moves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flbench.tuning.perturbing import perturbed
from flbench.tuning.samplers import RandomSampler
from flbench.tuning.search_space import Params
from tests.tuning.support import NO_CLOCK, space_of

SPACE = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "train.clip: {choice: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}",
    "algorithm.layers: {int: [-3, 3]}",
    "algorithm.share: {choice: [none, body, full]}",
    "algorithm.lambda0: {uniform: [0.0, 0.5], when: {algorithm.share: [body, full]}}",
)


def moves(params: Params, count: int = 400) -> list[Params]:
    return [perturbed(SPACE, params, np.random.default_rng(k)) for k in range(count)]


@NO_CLOCK
@given(st.integers(1, 50), st.integers(0, 50))
def test_perturbed_holds_active_values_of_the_space(index, seed):
    params = RandomSampler(SPACE, {}, seed).trial(index)

    for _ in range(5):
        params = perturbed(SPACE, params, np.random.default_rng(seed))
        assert params == SPACE.assign(lambda one, p=params: p[one.path])
        assert all(SPACE.parameters[path].holds(value) for path, value in params.items())


def test_perturbed_multiplies_numbers_and_leaves_what_the_state_was_made_with():
    """Two of the three outcomes are deterministic; the third, a new draw, takes a quarter."""
    params = {"train.optimizer.lr": 0.05, "train.clip": 0.3, "algorithm.layers": 1}
    params |= {"algorithm.share": "body", "algorithm.lambda0": 0.2}

    found = moves(params)

    for path, near in {
        "train.optimizer.lr": {0.04, 0.06},
        "algorithm.lambda0": {0.16, 0.24},
    }.items():
        seen = [round(move[path], 12) for move in found]
        # 300 of 400 expected, standard deviation 8.7; five of these are allowed downwards.
        assert sum(value in near for value in seen) > 300 - 44
        assert near <= set(seen)
    for path in ("train.clip", "algorithm.layers", "algorithm.share"):
        assert {move[path] for move in found} == {params[path]}


def test_perturbed_clips_at_the_ends():
    found = moves({"train.optimizer.lr": 0.3})

    assert max(move["train.optimizer.lr"] for move in found) == 0.3


def test_default_outside_the_range_is_drawn():
    for move in moves({"train.optimizer.lr": 5.0}, 20):
        assert all(SPACE.parameters[path].holds(value) for path, value in move.items())


def test_equal_streams_perturb_equally():
    params = RandomSampler(SPACE, {}, 0).trial(1)

    assert moves(params, 5) == moves(params, 5)
