"""A space: what is active, defaults, what is left when values are settled."""

import json

import pytest

from flbench.config.sources import leaves
from flbench.tuning.reading import parse
from flbench.tuning.search_space import layer
from tests.support import config_of
from tests.tuning.support import space_of

NESTED = (
    "train.optimizer.nesterov: {choice: [true, false], when: {algorithm.share: [body, full]}}",
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.share: {choice: [none, body, full]}",
    "algorithm.tau: {uniform: [0, 0.5],"
    " when: {train.optimizer.nesterov: true, algorithm.share: body}}",
)


@pytest.mark.parametrize(
    ("share", "nesterov", "active"),
    [
        ("none", True, {"algorithm.share"}),
        ("full", True, {"algorithm.share", "train.optimizer.nesterov"}),
        ("body", False, {"algorithm.share", "train.optimizer.nesterov"}),
        ("body", True, {"algorithm.share", "train.optimizer.nesterov", "algorithm.tau"}),
    ],
)
def test_assign_asks_for_active_parameters_alone(share, nesterov, active):
    asked = []

    def pick(path, parameter):
        asked.append(path)
        return {"algorithm.share": share, "train.optimizer.nesterov": nesterov}.get(path, 0.1)

    values = space_of(*NESTED).assign(pick)

    assert values.keys() == active | {"train.optimizer.lr"}
    assert asked == list(values)


def test_leading_to_gives_values_under_which_a_parameter_is_active():
    space = space_of(*NESTED)

    above = space.leading_to("algorithm.tau")
    values = space.assign(lambda path, parameter: above.get(path, parameter.at(0.5)))

    assert above == {"algorithm.share": "body", "train.optimizer.nesterov": True}
    assert "algorithm.tau" in values


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
        "train.optimizer.nesterov",
    }


@pytest.mark.parametrize(
    ("settled", "left"),
    [
        ({"algorithm.share": "none"}, {}),
        ({"algorithm.share": "full"}, {"train.optimizer.nesterov": {}}),
        (
            {"algorithm.share": "body"},
            {
                "train.optimizer.nesterov": {},
                "algorithm.tau": {"train.optimizer.nesterov": (True,)},
            },
        ),
        ({"train.optimizer.nesterov": False}, {"algorithm.share": {}}),
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
