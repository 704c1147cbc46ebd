"""A space: what is active, defaults, what is left when values are settled."""

import json

import pytest

from flbench.config.sources import leaves
from flbench.tuning.reading import parse
from flbench.tuning.search_space import layer
from tests.support import config_of
from tests.tuning.support import space_of

NESTED = (
    "algorithm.no_pos: {choice: [true, false], when: {algorithm.share: [body, full]}}",
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.share: {choice: [none, body, full]}",
    "algorithm.ema: {uniform: [0.0, 0.5], when: {algorithm.no_pos: true, algorithm.share: body}}",
)


@pytest.mark.parametrize(
    ("share", "no_pos", "active"),
    [
        ("none", True, {"algorithm.share"}),
        ("full", True, {"algorithm.share", "algorithm.no_pos"}),
        ("body", False, {"algorithm.share", "algorithm.no_pos"}),
        ("body", True, {"algorithm.share", "algorithm.no_pos", "algorithm.ema"}),
    ],
)
def test_assign_asks_for_active_parameters_alone(share, no_pos, active):
    asked = []

    def pick(path, parameter):
        asked.append(path)
        return {"algorithm.share": share, "algorithm.no_pos": no_pos}.get(path, 0.1)

    values = space_of(*NESTED).assign(pick)

    assert values.keys() == active | {"train.optimizer.lr"}
    assert asked == list(values)


def test_leading_to_gives_values_under_which_a_parameter_is_active():
    space = space_of(*NESTED)

    above = space.leading_to("algorithm.ema")
    values = space.assign(lambda path, parameter: above.get(path, parameter.at(0.5)))

    assert above == {"algorithm.share": "body", "algorithm.no_pos": True}
    assert "algorithm.ema" in values


def test_defaults_are_the_configurations_own_values_even_outside_the_space():
    space = space_of(
        "train.optimizer.lr: {loguniform: [0.1, 0.3]}",
        "algorithm.k_p: {int: [2, 5]}",
        "algorithm.distance: {fixed: hellinger}",
        method="fedcpmd",
    )

    found = space.defaults(config_of("algorithm=fedcpmd", "train.optimizer.lr=0.02"))

    assert found == {
        "train.optimizer.lr": 0.02,
        "algorithm.k_p": None,
        "algorithm.distance": "js",
    }


def test_defaults_leave_out_what_is_not_active_in_the_configuration():
    space = space_of(*NESTED)

    assert space.defaults(config_of()).keys() == {"train.optimizer.lr", "algorithm.share"}
    assert space.defaults(config_of("algorithm.share=body")).keys() == {
        "train.optimizer.lr",
        "algorithm.share",
        "algorithm.no_pos",
    }


@pytest.mark.parametrize(
    ("settled", "left"),
    [
        ({"algorithm.share": "none"}, {}),
        ({"algorithm.share": "full"}, {"algorithm.no_pos": {}}),
        (
            {"algorithm.share": "body"},
            {"algorithm.no_pos": {}, "algorithm.ema": {"algorithm.no_pos": (True,)}},
        ),
        ({"algorithm.no_pos": False}, {"algorithm.share": {}}),
    ],
)
def test_without_keeps_what_the_settled_values_allow(settled, left):
    space = space_of(*NESTED).without({**settled, "train.optimizer.lr": 0.01})

    assert {path: parameter.when for path, parameter in space.parameters.items()} == left


def test_space_without_an_empty_set_is_the_same_space():
    space = space_of(*NESTED)

    assert space.without({}) == space


def test_tree_reads_back_as_the_same_space():
    space = space_of(*NESTED)

    again = parse(json.loads(json.dumps(space.tree())), {}, "test")

    assert again == space
    assert list(again.parameters) == list(space.parameters)


def test_layer_is_the_overrides_of_a_trial():
    params = {"train.optimizer.lr": 0.02, "train.clip": None, "algorithm.tau": 0.5}

    found = layer(params, "trial 003")

    assert leaves(found.tree) == params
    assert found.origins == dict.fromkeys(params, "trial 003")
