"""Reading a space: one sentence for each problem, with file and line, key, value and cure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.core.errors import ConfigError
from flbench.tuning.library import load
from flbench.tuning.parameters import Int
from flbench.tuning.reading import KINDS, parse
from tests.tuning.support import NO_CLOCK, space_file, space_in

LR = "train.optimizer.lr: {loguniform: [0.001, 0.3]}"

WRONG = {
    "no type": ("algorithm.tau: {}", "has no known type, got none. Types: uniform,"),
    "unknown type": ("algorithm.tau: {uniforn: [0, 1]}", "Did you mean `uniform`?"),
    "two types": ("algorithm.tau: {uniform: [0, 1], int: [0, 1]}", "two types, uniform and int"),
    "bare value": ("algorithm.tau: 0.5", "must have a type, like `{fixed: 0.5}`"),
    "bare list": ("algorithm.tau: [0, 1]", "must have a type"),
    "unknown key": ("algorithm.tau: {uniform: [0, 1], step: 2}", "`step` is not a key of uniform"),
    "misspelt key": ("algorithm.tau: {uniform: [0, 1], pointz: 2}", "Did you mean `points`?"),
    "one end": ("algorithm.tau: {uniform: [1]}", "must be like `{uniform: [0.1, 1.0]}`"),
    "three ends": ("algorithm.tau: {uniform: [0, 1, 2]}", "got {'uniform': [0, 1, 2]}"),
    "no list": ("algorithm.tau: {uniform: 1}", "must be like `{uniform: [0.1, 1.0]}`"),
    "a word": ("algorithm.tau: {uniform: [0, many]}", "must be a number, or a share of"),
    "a truth": ("algorithm.tau: {uniform: [0, true]}", "must be a number"),
    "infinite": ("algorithm.tau: {uniform: [0, .inf]}", "finite"),
    "not a number": ("algorithm.tau: {uniform: [.nan, 1]}", "finite"),
    "turned round": ("algorithm.tau: {uniform: [1, 0]}", "low end must be below the high end"),
    "one number": ("algorithm.tau: {uniform: [1, 1]}", "write `fixed: 1`"),
    "log of zero": ("algorithm.tau: {loguniform: [0, 1]}", "needs a low end > 0, got 0"),
    "log of zero, whole": ("algorithm.tau: {int: [0, 9], log: true}", "needs a low end >= 1"),
    "fraction": ("algorithm.tau: {int: [0, 2.5]}", "must be a valid integer"),
    "step of zero": ("algorithm.tau: {quniform: [0, 1, 0]}", "needs a step > 0"),
    "too many steps": (
        "algorithm.tau: {quniform: [0, 1e+14, 1e-14]}",
        "is too small for [0, 1e+14]",
    ),
    "too large": (f"algorithm.tau: {{int: [0, {10**18}]}}", "at most 1e+15 in size"),
    "no multiple": ("algorithm.tau: {quniform: [0, 1, 0.3]}", "multiples of the step 0.3, got 1"),
    "no points": ("algorithm.tau: {uniform: [0, 1], points: 0}", "`points` must be"),
    "no choice": ("algorithm.tau: {choice: []}", "must be like `{choice: [a, b, c]}`"),
    "choice twice": ("algorithm.share: {choice: [body, full, body]}", "'body' is listed twice"),
    "choice of lists": ("algorithm.tau: {choice: [[1, 2]]}", "`choice` must be a word, a number"),
    "range of lists": ("algorithm.tau: {uniform: [[1], 2]}", "`uniform` must be a number"),
    "when nobody": ("algorithm.tau: {fixed: 1, when: {algorithm.share: full}}", "not another"),
    "when itself": ("algorithm.tau: {fixed: 1, when: {algorithm.tau: 1}}", "not another parameter"),
    "when a range": ("algorithm.tau: {fixed: 1, when: {train.optimizer.lr: 0.1}}", "a real number"),
    "data": ("data.name: {choice: [digits]}", "only keys of algorithm, train, model can"),
    "seed": ("seed: {int: [0, 5]}", "cannot be searched"),
    "section": ("train: {optimizer: {lr: {fixed: 1}}}", "write dotted keys"),
    "rounds": ("train.rounds: {int: [5, 20]}", "the same for all trials"),
    "cohorts": ("train.participation: {uniform: [0.1, 1]}", "the same for all trials"),
    "stops": ("train.early_stopping.patience: {randint: [1, 5]}", "the same for all trials"),
    "method": ("algorithm.name: {choice: [fedavg, hfcd]}", "the same for all trials"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_entry_is_one_sentence_with_its_line(tmp_path, case):
    entry, said = WRONG[case]
    path = space_file(tmp_path, LR, entry)

    with pytest.raises(ConfigError) as caught:
        load(["hfcd"], path, rounds=10)

    message = str(caught.value)
    assert said in message
    assert f"{path}:4" in message
    assert f"`{entry.partition(':')[0]}`" in message
    assert "\n" not in message


def test_all_errors_are_reported_together(tmp_path):
    entries = [entry for entry, _ in WRONG.values() if entry.startswith("algorithm.tau: {uni")]
    renamed = [entry.replace("tau", f"tau{k}") for k, entry in enumerate(entries)]

    with pytest.raises(ConfigError) as caught:
        load(["hfcd"], space_file(tmp_path, *renamed), rounds=10)

    lines = str(caught.value).splitlines()
    assert len(lines) == len(renamed) > 5
    assert all(f"s.yaml:{k}" in line for k, line in enumerate(lines, start=3))


def test_value_that_a_condition_requires_must_occur(tmp_path):
    with pytest.raises(
        ConfigError, match=r"to be 'bodies', which is not one of its values. Did you mean `body`"
    ):
        space_in(
            tmp_path,
            "algorithm.share: {choice: [none, body]}",
            "algorithm.lambda0: {uniform: [0, 0.5], when: {algorithm.share: bodies}}",
        )


def test_conditions_in_a_circle_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"circle: algorithm.a -> algorithm.b -> algorithm.a"):
        space_in(
            tmp_path,
            "algorithm.a: {choice: [1, 2], when: {algorithm.b: 1}}",
            "algorithm.b: {choice: [1, 2], when: {algorithm.a: 1}}",
        )


def test_conditions_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`algorithm.c` can never be active.*s.yaml:5"):
        space_in(
            tmp_path,
            "algorithm.a: {choice: [1, 2]}",
            "algorithm.b: {choice: [1, 2], when: {algorithm.a: 1}}",
            "algorithm.c: {choice: [1, 2], when: {algorithm.b: 1, algorithm.a: 2}}",
        )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "`method` must name a method, got None"),
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
    assert isinstance(parameter, Int)
    assert parameter.limits == ends


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
KEYS = st.sampled_from([*KINDS, *KINDS, "when", "points", "log", "junk"])
ENTRIES = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3) | VALUES
PATHS = st.sampled_from(["algorithm.tau", "algorithm.x", "train.clip", "train", "", ".", "data.a"])


@pytest.mark.slow
@NO_CLOCK
@given(st.dictionaries(PATHS, ENTRIES, max_size=3) | VALUES)
def test_any_tree_is_a_space_or_an_error_of_the_user(entries):
    try:
        space = parse({"method": "hfcd", "space": entries}, {}, "test", rounds=10)
    except ConfigError:
        return
    params = space.assign(lambda path, parameter: parameter.at(0.5))
    assert all(space.parameters[path].holds(value) for path, value in params.items())
