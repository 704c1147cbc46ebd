"""Parameters and spaces: their files, values, conditions, defaults, and what fits a method."""

import json
import tomllib
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides, from_values, read_file
from flbench.core.errors import ConfigError
from flbench.tuning import library
from flbench.tuning.library import fit, load
from flbench.tuning.search_space import Parameter, parse
from tests.support import config_of
from tests.tuning.support import NO_CLOCK, space_file, space_in, space_of

ROOT = Path(__file__).resolve().parents[2]
LR = "train.optimizer.lr: {loguniform: [0.001, 0.3]}"
CONDITIONAL = (
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.share: {choice: [none, body, full]}",
    "train.optimizer.nesterov: {choice: [true, false]}",
    "algorithm.tau: {uniform: [0, 0.5],"
    " when: {train.optimizer.nesterov: true, algorithm.share: [none, body]}}",
)
ALL = space_of(
    "train.optimizer.lr: {loguniform: [0.001, 0.3]}",
    "algorithm.tau: {uniform: [0.1, 1]}",
    "algorithm.a: {int: [1, 3]}",
    "algorithm.c: {choice: [a, 3, 0.5, null, true]}",
)


def drawn(space, count):
    """Parameters that Optuna draws at random."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
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
    found = drawn(space_of(*CONDITIONAL), 100)

    for params in found:
        is_active = params["algorithm.share"] != "full" and params["train.optimizer.nesterov"]
        assert ("algorithm.tau" in params) == is_active
    assert len({len(params) for params in found}) == 2


def test_optuna_learns_those_defaults_of_the_first_trial_that_lie_in_the_ranges():
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


def test_a_parameter_holds_its_values_alone():
    for path, inside, outside in (
        ("algorithm.tau", (1, 0.1), (1.1, None, True, "0.5", float("nan"))),
        ("algorithm.a", (3,), (2.5, 4)),
        ("algorithm.c", (None, 0.5), ("b",)),
    ):
        parameter = ALL.parameters[path]
        assert [parameter.holds(value) for value in inside] == [True] * len(inside)
        assert [parameter.holds(value) for value in outside] == [False] * len(outside)


def test_position_on_the_axis():
    assert Parameter("x", 0.01, 100.0, log=True).position(1.0) == pytest.approx(0.5)
    assert Parameter("x", 2.0, 4.0).position(6.0) == pytest.approx(2.0)
    assert Parameter("x", choices=("a", "b")).position("b") == pytest.approx(0.75)
    assert Parameter("x", 0.01, 1.0, log=True).position(0.0) is None
    assert Parameter("x").position(None) is None
    assert Parameter("x", choices=("a", "b")).position("c") is None
    # A longer axis shows all values.
    assert Parameter("x", 0.1).extended([2.0, None, 0.5]) == Parameter("x", 0.1, 2.0)
    assert Parameter("x", choices=("a",)).extended(["b", None]).choices == ("a", "b", None)


@NO_CLOCK
@given(st.floats(0, 1))
def test_value_at_a_position_has_that_position(place):
    for one in (Parameter("x", 0.001, 30.0, log=True), Parameter("x", -2.0, 4.0)):
        assert one.position(one.at(place)) == pytest.approx(place, abs=1e-5)


def test_end_is_the_last_twentieth_of_a_range_or_the_last_of_three_numbers():
    two_decades = Parameter("x", 0.1, 10.0, log=True)
    for one, value, end in (
        (two_decades, 0.1 * 10 ** (0.049 * 2), "low"),
        (two_decades, 0.1 * 10 ** (0.051 * 2), None),
        (two_decades, 20.0, "high"),
        (two_decades, None, None),
        (Parameter("x", 1, 3, whole=True), 1, "low"),
        (Parameter("x", 1, 2, whole=True), 1, None),
        (Parameter("x", choices=(16, 8, 32)), 32, "high"),
        (Parameter("x", choices=(16, 8, 32)), 16, None),
        (Parameter("x", choices=("a", "b", "c")), "a", None),
    ):
        assert one.end(value) == end


def test_defaults_are_the_configurations_own_values_where_they_are_active():
    outside = space_of(
        "train.optimizer.lr: {loguniform: [0.1, 0.3]}",
        "algorithm.k_p: {int: [2, 5]}",
        "algorithm.distance: {choice: [hellinger, l2]}",
        method="fedcpmd",
    ).defaults(config_of("algorithm=fedcpmd", "train.optimizer.lr=0.02"))
    space = space_of(*CONDITIONAL)
    nesterov = ("train.optimizer.nesterov=true", "train.optimizer.momentum=0.9")

    assert list(outside.values()) == [0.02, None, "js"]
    assert "algorithm.tau" not in space.defaults(config_of())
    assert space.defaults(config_of(*nesterov)).keys() == space.parameters.keys()


@pytest.mark.parametrize(
    ("given_values", "left"),
    [
        ({}, [{}, {}, None]),
        ({"algorithm.share": "full"}, [{}]),
        ({"algorithm.share": "body"}, [{}, {"train.optimizer.nesterov": (True,)}]),
        ({"train.optimizer.nesterov": False}, [{}]),
    ],
)
def test_space_without_given_keys_keeps_what_their_values_allow(given_values, left):
    space = space_of(*CONDITIONAL)

    found = space.without({**given_values, "train.optimizer.lr": 0.01})

    conditions = [parameter.when for parameter in found.parameters.values()]
    whole = space.parameters["algorithm.tau"].when
    assert conditions == [whole if one is None else one for one in left]


def test_tree_reads_back_as_the_same_space():
    for space in (space_of(*CONDITIONAL), ALL):
        again = parse(json.loads(json.dumps(space.tree())), {}, "test")

        assert again == space
        assert list(again.parameters) == list(space.parameters)


WRONG = [
    "algorithm.tau: {}",
    "algorithm.tau: {uniforn: [0, 1]}",
    "algorithm.tau: {uniform: [0, 1], step: 2}",
    "algorithm.tau: {uniform: [0, many]}",
    "algorithm.tau: {uniform: [1, 0]}",
    "algorithm.tau: {loguniform: [0, 1]}",
    "algorithm.tau: {int: [0, 2.5]}",
    "algorithm.tau: {uniform: [0, 1], when: algorithm.share}",
    "algorithm.tau: {uniform: [1]}",
    "algorithm.tau: {choice: [1]}",
    "algorithm.tau: {choice: []}",
    "algorithm.share: {choice: [body, full, body]}",
    "algorithm.name: {choice: [fedavg, hfcd]}",
    "algorithm.tau: {choice: [[1, 2]]}",
    "algorithm.tau: {choice: [1, 2], when: {algorithm.share: full}}",
    "algorithm.tau: {choice: [1, 2], when: {train.optimizer.lr: 0.1}}",
    "data.name: {choice: [digits]}",
    "train: {optimizer: {lr: {choice: [1, 2]}}}",
    "train.rounds: {int: [5, 20]}",
]


@pytest.mark.parametrize("entry", WRONG)
def test_wrong_entry_is_one_line_with_its_key_and_place(tmp_path, entry):
    path = space_file(tmp_path, LR, entry)
    with pytest.raises(ConfigError) as caught:
        load(["hfcd"], path, rounds=10)
    message = str(caught.value)
    assert f"{path}:4" in message
    assert f"`{entry.partition(':')[0]}" in message
    assert "\n" not in message


@pytest.mark.parametrize("when", ["{algorithm.b: 1}", "{algorithm.a: 3}"])
def test_conditions_that_cannot_hold_are_refused(tmp_path, when):
    """Because a parameter has conditions itself, or a value is not there."""
    entries = (
        "algorithm.a: {choice: [1, 2]}",
        "algorithm.b: {choice: [1, 2], when: {algorithm.a: 1}}",
        f"algorithm.c: {{choice: [1, 2], when: {when}}}",
    )
    with pytest.raises(ConfigError, match=r"`algorithm.c` .*s.yaml:5"):
        space_in(tmp_path, *entries)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("space: {algorithm.tau: {choice: [1, 2]}}\n", "`method`"),
        ("method: hfcd\nspace: []\n", "`space`"),
        ("method: hfcdd\nspace: {algorithm.tau: {choice: [1, 2]}}\n", "hfcdd"),
        ("methods: hfcd\nspace: {algorithm.tau: {choice: [1, 2]}}\n", "`methods`"),
        ("method: fedavg\nspace: {train.optimizer.lr: {choice: [1, 2]}}\n", "fedavg"),
        ("method: hfcd\nspace: {algorithm.tau: {choice: !!python/name:os.system ''}}\n", ".yaml:2"),
    ],
)
def test_wrong_file_is_an_error(tmp_path, content, named):
    path = tmp_path / "hfcd.yaml"
    path.write_text(content)
    for given_path in (path, tmp_path):  # a file, and a folder of files
        with pytest.raises(ConfigError) as caught:
            load(["hfcd"], given_path, rounds=10)

        assert named in str(caught.value)


@pytest.mark.parametrize(("rounds", "ends"), [(15, (2, 9)), (200, (20, 120)), (1, (0, 1))])
def test_an_end_may_be_a_share_of_the_rounds(tmp_path, rounds, ends):
    entry = "algorithm.k_p: {int: [0.1 rounds, 0.6 rounds]}"

    space = space_in(tmp_path, entry, method="fedcpmd", rounds=rounds)

    parameter = space.parameters["algorithm.k_p"]
    assert (parameter.whole, parameter.low, parameter.high) == (True, *ends)


def base(method: str = "hfcd", *overrides: str) -> list[Layer]:
    return [from_overrides(overrides), Layer({"algorithm": {"name": method}})]


def test_key_of_the_command_line_is_not_searched_and_one_of_a_file_is():
    space = space_of(LR, "algorithm.tau: {uniform: [0.1, 1]}", "algorithm.gamma: {uniform: [1, 2]}")
    file = Layer({"algorithm": {"name": "hfcd", "tau": 0.3}}, {"algorithm.tau": "my.yaml:2"})

    found, notes = fit(space, base("hfcd", "algorithm.tau=0.3", "train.rounds=7"))

    assert list(found.parameters) == ["train.optimizer.lr", "algorithm.gamma"]
    assert len(notes) == 1
    assert fit(space, [file]) == (space, [])


def test_condition_on_a_key_of_the_command_line_is_settled():
    space = space_of(
        LR,
        "algorithm.topology: {choice: [random, ring]}",
        "algorithm.neighbours: {int: [2, 10], when: {algorithm.topology: random}}",
        method="dfedavg",
    )

    ring, _ = fit(space, base("dfedavg", "algorithm.topology=ring"))
    random, _ = fit(space, base("dfedavg", "algorithm.topology=random"))

    assert list(ring.parameters) == ["train.optimizer.lr"]
    assert random.parameters["algorithm.neighbours"].when == {}


def test_nothing_left_to_search_is_an_error():
    space = space_of(LR)
    with pytest.raises(ConfigError, match=r"`hfcd`.*train\.optimizer\.lr"):
        fit(space, base("hfcd", "train.optimizer.lr=0.1"))


@pytest.mark.parametrize(
    ("method", "entry"),
    [
        ("hfcd", "algorithm.tau: {uniform: [0, 1]}"),  # its low end
        ("hfcd", "algorithm.alpha: {uniform: [0.5, 1.5]}"),  # its high end
        ("hfcd", "algorithm.share: {choice: [none, ful]}"),
        ("ifca", "algorithm.clusters: {uniform: [1, 4]}"),  # fractions of a count
        ("hfcd", "algorithm.mu: {uniform: [0.1, 1]}"),  # the key of another method
        ("hfcd", "algorithm.tau: {choice: ['0.1', '0.2']}"),  # read as numbers
        ("hfcd", "train.optimizer.nesterov: {choice: [true, false]}"),  # needs momentum
        ("fedpc", "algorithm.groups: {loguniform: [1, 8]}"),  # between its ends
    ],
)
def test_error_about_a_refused_value_names_key_file_and_line(tmp_path, method, entry):
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

    assert (len(found.parameters), notes) == (3, [])


def test_parameters_of_a_loss_term_are_searched():
    space = space_of(
        LR,
        "train.terms.0.weight: {loguniform: [0.1, 10]}",
        "train.terms.0.gamma: {uniform: [0, 4]}",
        method="fedavg",
    )
    layers = base("fedavg", "train.terms=[{name: focal, weight: 2}]")

    found, _ = fit(space, layers)

    assert found == space
    assert found.defaults(resolve(layers)[0])["train.terms.0.weight"] == 2
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


def test_methods_that_a_file_or_a_folder_does_not_name_take_the_built_in_space(tmp_path):
    path = space_file(tmp_path, LR, name="hfcd.yaml")

    for given_path in (path, tmp_path):
        spaces = load(["fedavg", "hfcd"], given_path, rounds=10)

        assert list(spaces) == ["fedavg", "hfcd"]
        assert spaces["fedavg"] == library.built_in("fedavg", rounds=10)
        assert spaces["hfcd"].source == str(path)


def test_tune_is_the_folder_of_the_package_and_is_installed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "flbench"
    packed = {file for p in patterns["package-data"]["flbench"] for file in package.glob(p)}

    assert (ROOT / "tune").samefile(library.FOLDER)
    assert set(library.FOLDER.iterdir()) <= packed


def test_example_of_the_how_to_is_a_space(tmp_path):
    text = (library.FOLDER / "README.md").read_text()
    path = tmp_path / "example.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0])

    space = parse(*read_file(path), str(path))

    assert "algorithm.agg_weights" in space.parameters
