"""Kinds of parameter: which values they have, and how likely each is."""

import json
import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flbench.tuning.parameters import (
    DIGITS,
    Parameter,
    Range,
)
from flbench.tuning.reading import KINDS
from tests.tuning.support import NO_CLOCK

QUANTILES = st.floats(0, 1)
END = st.floats(1e-6, 1e6).map(lambda end: float(f"{end:.{DIGITS}g}"))
ENDS = st.tuples(END, END).filter(lambda e: e[0] < e[1])
WHOLE_ENDS = st.tuples(st.integers(1, 50), st.integers(1, 50)).filter(lambda e: e[0] < e[1])


def of(**keys) -> Parameter:
    [kind] = keys.keys() & KINDS.keys()
    return KINDS[kind].model_validate(keys)


@st.composite
def multiples(draw):
    """A quniform on steps that binary fractions cannot hold."""
    step = draw(st.sampled_from(["0.1", "0.05", "0.3", "0.007", "1", "5"]))
    low = draw(st.integers(-20, 20))
    high = low + draw(st.integers(1, 30))
    number = int if "." not in step else float
    return of(quniform=[number(Decimal(step) * k) for k in (low, high)] + [number(step)])


PARAMETERS = st.one_of(
    ENDS.map(lambda e: of(uniform=e)),
    ENDS.map(lambda e: of(loguniform=e)),
    WHOLE_ENDS.map(lambda e: of(int=e)),
    WHOLE_ENDS.map(lambda e: of(int=e, log=True)),
    multiples(),
    st.lists(st.sampled_from(["a", "b", 3, 0.5, None, True]), min_size=1, unique=True).map(
        lambda values: of(choice=values)
    ),
)


@pytest.mark.slow
@NO_CLOCK
@given(PARAMETERS, QUANTILES)
def test_at_gives_a_plain_value_that_the_parameter_holds(parameter, quantile):
    value = parameter.at(quantile)

    assert parameter.holds(value)
    assert type(value) in (int, float, str, bool, type(None))
    assert json.loads(json.dumps(value)) == value


@NO_CLOCK
@given(PARAMETERS.filter(lambda p: isinstance(p, Range)), QUANTILES, QUANTILES)
def test_range_grows_with_the_quantile_from_end_to_end(parameter, one, other):
    low, high = sorted((one, other))

    assert parameter.at(low) <= parameter.at(high)
    assert (parameter.at(0.0), parameter.at(1.0)) == parameter.limits


@NO_CLOCK
@given(PARAMETERS.filter(lambda p: isinstance(p, Range)), st.floats(-1e7, 1e7))
def test_nearest_is_in_the_range_and_changes_nothing_twice(parameter, number):
    value = parameter.nearest(number)

    assert parameter.holds(value)
    assert parameter.nearest(value) == value


@NO_CLOCK
@given(multiples(), QUANTILES)
def test_quniform_is_an_exact_multiple_without_junk(parameter, quantile):
    value, step = parameter.at(quantile), parameter.ends[2]

    assert Decimal(str(value)) % Decimal(str(step)) == 0
    assert isinstance(value, int) == isinstance(step, int)
    assert parameter.value(parameter.index(value)) == value


@NO_CLOCK
@given(st.sampled_from(["uniform", "loguniform"]), ENDS, QUANTILES)
def test_uniform_is_even_in_its_scale(kind, ends, quantile):
    """The quantile function of a uniform number, on the plain or the logarithmic scale."""
    scale = float if kind == "uniform" else math.log
    low, high = map(scale, ends)

    value = scale(of(**{kind: ends}).at(quantile))

    expected = low + quantile * (high - low)
    rounding = 1e-5 * (max(abs(low), abs(high)) if kind == "uniform" else 1.0)
    assert value == pytest.approx(expected, abs=rounding)


@pytest.mark.parametrize(
    "parameter",
    [
        of(int=[2, 8]),
        of(quniform=[5, 40, 5]),
        of(quniform=[0.1, 0.7, 0.1]),
        of(choice=["a", "b", None]),
    ],
)
def test_every_value_owns_an_equal_share_of_the_quantiles(parameter):
    count = 7 * 8 * 3 * 100  # divisible by the number of values of each

    found = Counter(parameter.at((k + 0.5) / count) for k in range(count))

    assert len(set(found.values())) == 1
    assert len(found) in (3, 7, 8)
    assert all(map(parameter.holds, found))


def test_int_on_a_logarithmic_scale_owns_what_is_rounded_to_it():
    """P(k) = log((k + 1/2) / (k - 1/2)) over log of the whole."""
    parameter, count = of(int=[1, 4], log=True), 100_000

    found = Counter(parameter.at((k + 0.5) / count) for k in range(count))

    whole = math.log(4.5 / 0.5)
    for value in (1, 2, 3, 4):
        expected = math.log((value + 0.5) / (value - 0.5)) / whole
        assert found[value] / count == pytest.approx(expected, abs=2 / count)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (of(uniform=[0.0, 1.0]), [0.0, 0.5, 1.0]),
        (of(uniform=[0.0, 1.0], points=1), [0.5]),
        (of(loguniform=[0.01, 100], points=5), [0.01, 0.1, 1.0, 10.0, 100.0]),
        (of(int=[1, 2]), [1, 2]),
        (of(int=[2, 6], points=5), [2, 3, 4, 5, 6]),
        (of(quniform=[0.1, 0.3, 0.1], points=9), [0.1, 0.2, 0.3]),
        (of(choice=["b", "a"]), ["b", "a"]),
        (of(fixed=None), [None]),
    ],
)
def test_grid_goes_from_end_to_end_without_doubles(parameter, values):
    assert list(parameter.grid()) == values


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        (of(uniform=[0, 1]), 1.1),
        (of(uniform=[0, 1]), None),
        (of(uniform=[0, 1]), True),
        (of(uniform=[0, 1]), "0.5"),
        (of(int=[0, 4]), 2.5),
        (of(quniform=[0, 10, 5]), 7),
        (of(choice=[1, 2]), 3),
        (of(fixed="a"), "b"),
    ],
)
def test_holds_refuses_what_is_not_a_value(parameter, value):
    assert not parameter.holds(value)


def test_a_number_with_an_exponent_is_a_number_though_yaml_reads_a_text():
    assert of(loguniform=["1e-3", "1e-1"]).limits == (1e-3, 1e-1)
    assert of(choice=["1e-3", "e3"]).values == (1e-3, "e3")
    assert of(fixed="1e2").grid() == (100.0,)


@pytest.mark.slow
@NO_CLOCK
@given(PARAMETERS)
def test_tree_reads_back_as_the_same_parameter(parameter):
    tree = json.loads(json.dumps(parameter.tree()))

    assert type(parameter).model_validate(tree) == parameter


def test_quantiles_of_a_uniform_stream_give_a_uniform_sample():
    """Kolmogorov-Smirnov: the largest gap of 2,000 draws stays below 1.95 / sqrt(n) (0.1 %)."""
    draws = np.random.default_rng(0).random(2000)

    sample = np.sort([math.log10(of(loguniform=[1e-3, 1e-1]).at(u)) for u in draws])

    gap = np.abs((sample + 3) / 2 - np.arange(2000) / 2000).max()
    assert gap < 1.95 / math.sqrt(2000)
