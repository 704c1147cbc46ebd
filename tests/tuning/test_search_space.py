"""Parameters and spaces: values, positions on an axis, conditions, defaults, what is left."""

import json

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.tuning.reading import parse
from flbench.tuning.search_space import Parameter
from tests.support import config_of
from tests.tuning.support import NO_CLOCK, space_of

NESTED = (
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.share: {choice: [none, body, full]}",
    "train.optimizer.nesterov: {choice: [true, false], when: {algorithm.share: [body, full]}}",
    "algorithm.tau: {uniform: [0, 0.5],"
    " when: {train.optimizer.nesterov: true, algorithm.share: body}}",
)
ALL = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.tau: {uniform: [0.1, 1]}",
    "algorithm.a: {int: [1, 3]}",
    "algorithm.b: {int: [1, 64], log: true}",
    "algorithm.c: {choice: [a, 3, 0.5, null, true]}",
    "algorithm.d: {fixed: x}",
)


def drawn(space, count, seed=0):
    """Parameters that Optuna draws at random."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(study.ask()) for _ in range(count)]


def test_drawn_values_are_plain_and_can_be_typed_again():
    found = drawn(ALL, 200)

    for params in found:
        assert params.keys() == ALL.parameters.keys()
        assert json.loads(json.dumps(params)) == params
        assert ALL.inside(params) == params
        assert all(float(f"{v:.6g}") == v for v in params.values() if isinstance(v, float))
    assert {params["algorithm.a"] for params in found} == {1, 2, 3}
    assert {params["algorithm.c"] for params in found} == {"a", 3, 0.5, None, True}
    # The median of 200 draws of a logarithmic range lies near its geometric mean, 0.0173.
    assert 0.01 < sorted(params["train.optimizer.lr"] for params in found)[100] < 0.03


def test_parameter_is_drawn_only_where_its_conditions_hold():
    for params in drawn(space_of(*NESTED), 100):
        share, nesterov = params["algorithm.share"], params.get("train.optimizer.nesterov")
        assert (nesterov is not None) == (share != "none")
        assert ("algorithm.tau" in params) == (share == "body" and nesterov is True)


def test_first_trial_has_the_defaults_also_outside_the_ranges():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    defaults = {"train.optimizer.lr": 5.0, "algorithm.tau": 0.2, "algorithm.a": None}
    study.enqueue_trial(ALL.inside(defaults))

    first, second = study.ask(), study.ask()

    assert ALL.suggest(first, defaults) == defaults
    assert first.params == {"algorithm.tau": 0.2}
    assert ALL.suggest(second, defaults).keys() == ALL.parameters.keys()


def test_grid_is_the_product_of_ends_middles_and_choices_where_they_are_active():
    space = space_of(
        "train.optimizer.lr: {loguniform: [0.01, 1]}",
        "algorithm.share: {choice: [none, body]}",
        "algorithm.k: {int: [1, 2], when: {algorithm.share: body}}",
    )

    found = [tuple(params.values()) for params in space.grid()]

    middle = [("none",), ("body", 1), ("body", 2)]
    assert found == [(lr, *rest) for lr in (0.01, 0.1, 1.0) for rest in middle]


@pytest.mark.parametrize(
    ("path", "value", "holds"),
    [
        ("algorithm.tau", 1, True),
        ("algorithm.tau", 1.1, False),
        ("algorithm.tau", None, False),
        ("algorithm.tau", True, False),
        ("algorithm.tau", "0.5", False),
        ("algorithm.tau", float("nan"), False),
        ("algorithm.a", 3, True),
        ("algorithm.a", 2.5, False),
        ("algorithm.c", None, True),
        ("algorithm.c", "b", False),
    ],
)
def test_a_parameter_holds_its_values_alone(path, value, holds):
    assert ALL.parameters[path].holds(value) is holds


def test_values_in_words():
    assert [parameter.values for parameter in ALL.parameters.values()] == [
        "0.001 to 0.3, log",
        "0.1 to 1",
        "1 to 3",
        "1 to 64, log",
        "a, 3, 0.5, null, true",
        "fixed: x",
    ]


def test_position_on_the_axis():
    assert Parameter("x", 0.01, 100.0, log=True).position(1.0) == pytest.approx(0.5)
    assert Parameter("x", 2.0, 4.0).position(2.5) == pytest.approx(0.25)
    assert Parameter("x", 2.0, 4.0).position(6.0) == pytest.approx(2.0)
    assert Parameter("x", choices=("a", "b")).position("b") == pytest.approx(0.75)
    assert Parameter("x", 0.01, 1.0, log=True).position(0.0) is None
    assert Parameter("x").position(None) is None
    assert Parameter("x").position(float("nan")) is None
    assert Parameter("x", choices=("a", "b")).position("c") is None
    assert Parameter("x").position_in({"y": 0.5}) is None


@NO_CLOCK
@given(st.floats(0, 1))
def test_value_at_a_position_has_that_position(place):
    for one in (Parameter("x", 0.001, 30.0, log=True), Parameter("x", -2.0, 4.0)):
        assert one.position(one.at(place)) == pytest.approx(place, abs=1e-5)


def test_longer_axis_shows_all_values():
    assert Parameter("x", 0.1).extended([2.0, None, 0.5]) == Parameter("x", 0.1, 2.0)
    assert Parameter("x", 1, 4, whole=True).extended([1.5]).whole is False
    assert Parameter("x", choices=("a",)).extended(["b", "b", None]).choices == ("a", "b", None)


@pytest.mark.parametrize(
    ("value", "end"),
    [
        (0.1, "low"),
        (0.1 * 10 ** (0.049 * 2), "low"),  # two decades, 4.9 % of them from the end
        (0.1 * 10 ** (0.051 * 2), None),
        (10 / 10 ** (0.051 * 2), None),
        (10 / 10 ** (0.049 * 2), "high"),
        (20.0, "high"),
        (None, None),
    ],
)
def test_end_is_the_last_twentieth_of_the_range(value, end):
    assert Parameter("x", 0.1, 10.0, log=True).end(value) == end


def test_end_needs_three_values():
    assert Parameter("x", 1, 3, whole=True).end(1) == "low"
    assert Parameter("x", 1, 2, whole=True).end(1) is None
    for choice, end in ((8, "low"), (32, "high"), (16, None)):
        assert Parameter("x", choices=(16, 8, 32)).end(choice) == end
    for choices in ((8, 16), (False, True, None), ("a", "b", "c")):
        assert Parameter("x", choices=choices).end(choices[0]) is None


def test_defaults_are_the_configurations_own_values_where_they_are_active():
    outside = space_of(
        "train.optimizer.lr: {loguniform: [0.1, 0.3]}",
        "algorithm.k_p: {int: [2, 5]}",
        "algorithm.distance: {fixed: hellinger}",
        method="fedcpmd",
    ).defaults(config_of("algorithm=fedcpmd", "train.optimizer.lr=0.02"))
    space = space_of(*NESTED)

    assert list(outside.values()) == [0.02, None, "js"]
    assert space.defaults(config_of()).keys() == {"train.optimizer.lr", "algorithm.share"}
    assert "train.optimizer.nesterov" in space.defaults(config_of("algorithm.share=full"))


@pytest.mark.parametrize(
    ("given_values", "left"),
    [
        ({}, [{}, {"algorithm.share": ("body", "full")}, None]),
        ({"algorithm.share": "none"}, []),
        ({"algorithm.share": "full"}, [{}]),
        ({"algorithm.share": "body"}, [{}, {"train.optimizer.nesterov": (True,)}]),
        ({"train.optimizer.nesterov": False}, [{}]),
    ],
)
def test_space_without_given_keys_keeps_what_their_values_allow(given_values, left):
    space = space_of(*NESTED)

    found = space.without({**given_values, "train.optimizer.lr": 0.01})

    conditions = [parameter.when for parameter in found.parameters.values()]
    whole = space.parameters["algorithm.tau"].when
    assert conditions == [whole if one is None else one for one in left]
    assert space.without({}) == space


def test_tree_reads_back_as_the_same_space():
    for space in (space_of(*NESTED), ALL):
        again = parse(json.loads(json.dumps(space.tree())), {}, "test")

        assert again == space
        assert list(again.parameters) == list(space.parameters)
