"""Reading a space: one sentence for each problem, with file and line, key, value and cure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.core.errors import ConfigError, DataError
from flbench.tuning.library import load
from flbench.tuning.reading import FORMS, parameters, parse
from tests.tuning.support import NO_CLOCK, space_file, space_in

LR = "train.optimizer.lr: {loguniform: [0.001, 0.3]}"

WRONG = [
    "algorithm.tau: {}",
    "algorithm.tau: {uniforn: [0, 1]}",
    "algorithm.tau: 0.5",
    "algorithm.tau: {uniform: [0, 1], step: 2}",
    "algorithm.tau: {uniform: [1]}",
    "algorithm.tau: {uniform: [0, many]}",
    "algorithm.tau: {uniform: [1, 0]}",
    "algorithm.tau: {uniform: [1, 1]}",
    "algorithm.tau: {loguniform: [0, 1]}",
    "algorithm.tau: {int: [0, 2.5]}",
    "algorithm.tau: {quniform: [0, 10, 5]}",
    "algorithm.tau: {uniform: [0, 1], points: 5}",
    "algorithm.tau: {uniform: [0, .inf]}",
    "algorithm.tau: {int: [1, 2], log: 3}",
    "algorithm.tau: {int: [0, 2], log: true}",
    "algorithm.tau: {uniform: [0, 1], when: algorithm.share}",
    "algorithm.tau: {int: [0, 1000000000000000000]}",
    "algorithm.tau: {choice: []}",
    "algorithm.share: {choice: [body, full, body]}",
    "algorithm.tau: {choice: [[1, 2]]}",
    "algorithm.tau: {fixed: 1, when: {algorithm.share: full}}",
    "algorithm.tau: {fixed: 1, when: {train.optimizer.lr: 0.1}}",
    "data.name: {choice: [digits]}",
    "seed: {int: [0, 5]}",
    "train: {optimizer: {lr: {fixed: 1}}}",
    "train.rounds: {int: [5, 20]}",
    "algorithm.name: {choice: [fedavg, hfcd]}",
]


@pytest.mark.parametrize("entry", WRONG)
def test_wrong_entry_is_one_sentence_with_its_key_and_line(tmp_path, entry):
    path = space_file(tmp_path, LR, entry)
    with pytest.raises(ConfigError) as caught:
        load(["hfcd"], path, rounds=10)
    message = str(caught.value)
    assert f"{path}:4" in message
    assert f"`{entry.partition(':')[0]}" in message
    assert "\n" not in message


def test_value_that_a_condition_requires_must_occur(tmp_path):
    with pytest.raises(
        ConfigError, match=r"to be 'bodies', which is not one of its values. Did you mean `body`"
    ):
        space_in(
            tmp_path,
            "algorithm.share: {choice: [none, body]}",
            "algorithm.lambda0: {uniform: [0, 0.5], when: {algorithm.share: bodies}}",
        )


def test_condition_on_a_parameter_below_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`algorithm.a` .*s.yaml:3.* `algorithm.b`"):
        space_in(
            tmp_path,
            "algorithm.a: {choice: [1, 2], when: {algorithm.b: 1}}",
            "algorithm.b: {choice: [1, 2]}",
        )


def test_conditions_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`algorithm.c` \(.*s.yaml:5\) can never be active"):
        space_in(
            tmp_path,
            "algorithm.a: {choice: [1, 2]}",
            "algorithm.b: {choice: [1, 2], when: {algorithm.a: 1}}",
            "algorithm.c: {choice: [1, 2], when: {algorithm.b: 1, algorithm.a: 2}}",
        )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "`method` must name a method"),
        ("method: hfcd\n", "`space` must be a mapping of parameters, got None"),
        ("method: hfcd\nspace: []\n", "`space` must be a mapping of parameters"),
        ("method: hfcdd\nspace: {algorithm.tau: {fixed: 1}}\n", "Did you mean `hfcd`"),
        ("methods: hfcd\nspace: {algorithm.tau: {fixed: 1}}\n", "Did you mean `method`"),
        ("method: hfcd\nspace:\n  a: 1\n  a: 2\n", "s.yaml:4: the key `space.a`"),
        ("method: hfcd\nspace: [1\n", "s.yaml:3"),
        (
            "method: hfcd\nspace: {algorithm.tau: {fixed: !!python/name:os.system ''}}\n",
            "s.yaml:2",
        ),
    ],
)
def test_wrong_file_is_an_error(tmp_path, content, said):
    path = tmp_path / "s.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError) as caught:
        load(["hfcd"], path, rounds=10)

    assert said in str(caught.value)


@pytest.mark.parametrize(("rounds", "ends"), [(15, (2, 9)), (200, (20, 120)), (1, (0, 1))])
def test_an_end_may_be_a_share_of_the_rounds(tmp_path, rounds, ends):
    entry = "algorithm.k_p: {int: [0.1 rounds, 0.6 rounds]}"

    space = space_in(tmp_path, entry, method="fedcpmd", rounds=rounds)

    parameter = space.parameters["algorithm.k_p"]
    assert parameter.whole
    assert (parameter.low, parameter.high) == ends


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
LEAVES |= st.sampled_from(["0.5 rounds", "1e-3", "1e999", "algorithm.tau", 10**400, -1, 1, 2, 3])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["algorithm.tau", "algorithm.x", "int"]), inner, max_size=2
        )
    ),
    max_leaves=6,
)
KEYS = st.sampled_from([*FORMS, *FORMS, "when", "points", "log", "junk"])
ENTRIES = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3) | VALUES
PATHS = st.sampled_from(["algorithm.tau", "algorithm.x", "train.clip", "train", "", ".", "data.a"])


@pytest.mark.full
@NO_CLOCK
@given(st.dictionaries(PATHS, ENTRIES, max_size=3) | VALUES)
def test_any_tree_is_a_space_or_an_error_of_the_user(entries):
    try:
        space = parse({"method": "hfcd", "space": entries}, {}, "test", rounds=10)
    except ConfigError:
        return
    params = space.assign(lambda parameter: parameter.grid()[0])
    assert space.inside(params) == params


@pytest.mark.parametrize("tree", [{}, {"space": 3}, {"space": {"algorithm.tau": {"int": "all"}}}])
def test_damaged_record_of_a_study_is_named(tmp_path, tree):
    with pytest.raises(DataError, match=r"study\.json"):
        parameters(tree, tmp_path / "study.json")
