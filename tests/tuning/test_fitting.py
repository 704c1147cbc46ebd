"""A space over a configuration: what is taken out, and what a method refuses before a search."""

import pytest

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides, from_values
from flbench.core.errors import ConfigError
from flbench.tuning.fitting import fit, is_limit
from flbench.tuning.search_space import Parameter
from tests.tuning.support import space_in, space_of

LR = "train.optimizer.lr: {loguniform: [0.001, 0.3]}"


def base(method: str = "hfcd", *overrides: str) -> list[Layer]:
    return [from_overrides(overrides), Layer({"algorithm": {"name": method}})]


def test_key_of_the_command_line_is_not_searched():
    space = space_of(LR, "algorithm.tau: {uniform: [0.1, 1]}", "algorithm.gamma: {uniform: [1, 2]}")

    found, notes = fit(space, base("hfcd", "algorithm.tau=0.3", "train.rounds=7"))

    assert list(found.parameters) == ["train.optimizer.lr", "algorithm.gamma"]
    assert notes == ["hfcd: `algorithm.tau` is 0.3 (command line), not searched."]


def test_key_of_a_configuration_file_is_searched():
    space = space_of(LR, "algorithm.tau: {uniform: [0.1, 1]}")
    file = Layer({"algorithm": {"name": "hfcd", "tau": 0.3}}, {"algorithm.tau": "my.yaml:2"})

    assert fit(space, [file]) == (space, [])


def test_condition_on_a_key_of_the_command_line_is_settled():
    space = space_of(
        LR,
        "algorithm.topology: {choice: [random, ring]}",
        "algorithm.neighbours: {int: [2, 10], when: {algorithm.topology: random}}",
        method="dfedavg",
    )

    ring, notes = fit(space, base("dfedavg", "algorithm.topology=ring"))
    random, _ = fit(space, base("dfedavg", "algorithm.topology=random"))

    assert list(ring.parameters) == ["train.optimizer.lr"]
    assert "`algorithm.neighbours` is not searched" in notes[1]
    assert random.parameters["algorithm.neighbours"].when == {}


@pytest.mark.parametrize("entries", [(LR,), (LR, "algorithm.share: {fixed: body}")])
def test_nothing_left_to_search_is_an_error(entries):
    with pytest.raises(
        ConfigError, match=r"no parameter of `hfcd` is left to search.*optimizer.lr\)"
    ):
        fit(space_of(*entries), base("hfcd", "train.optimizer.lr=0.1"))


REFUSED = {
    "low end": ("hfcd", "algorithm.tau: {uniform: [0, 1]}"),
    "high end": ("hfcd", "algorithm.alpha: {uniform: [0.5, 1.5]}"),
    "a choice": ("hfcd", "algorithm.share: {choice: [none, ful]}"),
    "fixed": ("hfcd", "algorithm.gamma: {fixed: -1}"),
    "word for number": ("hfcd", "algorithm.tau: {choice: [0.1, low]}"),
    "fractions of a count": ("ifca", "algorithm.clusters: {uniform: [1, 4]}"),
    "number for word": ("hfcd", "algorithm.share: {int: [0, 2]}"),
    "other method's key": ("hfcd", "algorithm.mu: {uniform: [0.1, 1]}"),
    "section": ("hfcd", "train.optimizer: {choice: [sgd, adam]}"),
    "quoted number": ("hfcd", "algorithm.tau: {choice: ['0.1', '0.2']}"),
    "contradiction": ("hfcd", "train.optimizer.nesterov: {choice: [true]}"),
    "in the middle": ("fedpc", "algorithm.groups: {loguniform: [1, 8]}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_error_about_a_refused_value_names_key_file_and_line(tmp_path, case):
    method, entry = REFUSED[case]
    space = space_in(tmp_path, LR, entry, method=method)
    with pytest.raises(ConfigError) as caught:
        fit(space, base(method))
    assert f"{tmp_path}/s.yaml:4" in str(caught.value)
    assert f"`{entry.partition(':')[0]}" in str(caught.value)


def test_conditional_value_is_tried_where_it_is_active(tmp_path):
    """Nesterov momentum is refused without momentum, and is only searched with it."""
    entries = (
        LR,
        "train.optimizer.momentum: {choice: [0.9, 0.0]}",
        "train.optimizer.nesterov: {choice: [true, false], when: {train.optimizer.momentum: 0.9}}",
    )

    found, notes = fit(space_in(tmp_path, *entries), base())

    assert len(found.parameters) == 3
    assert notes == []


def test_parameters_of_a_loss_term_are_searched():
    space = space_of(
        LR,
        "train.terms.0.weight: {loguniform: [0.1, 10]}",
        "train.terms.0.gamma: {uniform: [0, 4]}",
        method="fedavg",
    )
    layers = base("fedavg", "train.terms=[{name: focal, weight: 2}]")

    found, notes = fit(space, layers)

    assert (list(found.parameters), notes) == (list(space.parameters), [])
    config = resolve(layers)[0]
    assert found.defaults(config)["train.terms.0.weight"] == 2
    drawn = from_values({"train.terms.0.weight": 1.0, "train.terms.0.gamma": 2.0}, "trial")
    [term] = resolve([*layers, drawn])[0].train.terms
    assert (term.name, term.weight, term.gamma) == ("focal", 1.0, 2.0)


def test_argument_of_the_users_net_is_searched_over_a_configuration_without_arguments():
    """Files of a study have `model.args: null`."""
    path = "model.args.width"
    space = space_of(f"{path}: {{int: [2, 8]}}", method="fedavg")
    model = {"name": "tests.api.own_parts:Two", "args": None}
    layers = [Layer({"algorithm": {"name": "fedavg"}, "model": model}, {"model.args": "my.yaml:3"})]

    found, _ = fit(space, layers)
    config, _ = resolve([*layers, from_values({path: 4}, "space")])

    assert found == space
    assert config.model.args == {"width": 4}
    assert space.defaults(resolve(layers)[0]) == {path: 16}


def test_limit_of_the_parameter_itself_is_told_from_an_end_of_the_space():
    participation = Parameter("train.participation", 0.1, 1.0)
    assert is_limit(participation, "high", "fedavg")
    assert not is_limit(participation, "low", "fedavg")
    assert is_limit(Parameter("algorithm.mu", 0.0, 5.0), "low", "fedprox")
    assert not is_limit(Parameter("algorithm.mu", 0.0, 5.0), "high", "fedprox")
    assert is_limit(Parameter("algorithm.clusters", choices=(1, 2, 4)), "low", "ifca")
    assert not is_limit(Parameter("algorithm.mu"), "low", "no such method")
    assert not is_limit(Parameter("train.nothing.here"), "low", "fedavg")
