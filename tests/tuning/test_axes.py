import pytest

from flbench.tuning.axes import Axis, axes_of
from flbench.tuning.bounds import bounds


def axis(**entry):
    [found] = axes_of({"space": {"algorithm.x": entry}}, [], rounds=15)
    return found


def test_axis_of_each_kind():
    assert axis(uniform=[0.1, 2]) == Axis("algorithm.x", 0.1, 2)
    assert axis(loguniform=["1e-3", 1]) == Axis("algorithm.x", 0.001, 1, log=True)
    assert axis(quniform=[5, 40, 5]) == Axis("algorithm.x", 5, 40, whole=True)
    assert axis(quniform=[0.5, 5, 0.5]) == Axis("algorithm.x", 0.5, 5)
    assert axis(int=[1, 64], log=True) == Axis("algorithm.x", 1, 64, log=True, whole=True)
    assert axis(choice=["a", None]).choices == ("a", None)
    assert axis(fixed=3).fixed


def test_share_of_the_rounds_is_a_number():
    tree = {"space": {"algorithm.x": {"int": [1, "0.5 rounds"]}}}

    assert axes_of(tree, [], rounds=15) == [Axis("algorithm.x", 1, 8, whole=True)]


def test_parameter_without_a_declared_range_has_that_of_the_trials_and_no_end():
    trials = [{"algorithm.x": 3}, {"algorithm.x": 7, "train.y": "a"}, {"train.y": "b"}]

    [number, word] = axes_of({"space": {"algorithm.x": {"int": "all"}}}, trials, rounds=15)

    assert (number.low, number.high) == (3, 7)
    assert number.end(7) is None
    assert (word.path, word.choices) == ("train.y", ("a", "b"))


def test_places():
    assert Axis("x", 0.01, 100.0, log=True).position(1.0) == pytest.approx(0.5)
    assert Axis("x", 2.0, 4.0).position(2.5) == pytest.approx(0.25)
    assert Axis("x", 2.0, 4.0).position(6.0) == pytest.approx(2.0)
    assert Axis("x", choices=("a", "b")).position("b") == pytest.approx(0.75)


def test_what_an_axis_cannot_show_has_no_place():
    assert Axis("x", 0.01, 1.0, log=True).position(0.0) is None
    assert Axis("x", 0.0, 1.0).position(None) is None
    assert Axis("x", 0.0, 1.0).position(float("nan")) is None
    assert Axis("x", choices=("a", "b")).position("c") is None
    assert Axis("x", 0.0, 1.0).position_in({"y": 0.5}) is None


def test_longer_axis_shows_all_values():
    assert Axis("x", 0.1, 1.0).extended([2.0, None, 0.5]) == Axis("x", 0.1, 2.0)
    assert Axis("x", 1, 4, whole=True).extended([1.5]).whole is False
    assert Axis("x", choices=("a",)).extended(["b", "b", None]).choices == ("a", "b", None)


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
    assert Axis("x", 0.1, 10.0, log=True).end(value) == end


def test_end_needs_three_values():
    assert Axis("x", 1, 3, whole=True).end(1) == "low"
    assert Axis("x", 1, 2, whole=True).end(1) is None
    assert Axis("x", choices=(16, 8, 32)).end(8) == "low"
    assert Axis("x", choices=(16, 8, 32)).end(32) == "high"
    assert Axis("x", choices=(16, 8, 32)).end(16) is None
    assert Axis("x", choices=(8, 16)).end(8) is None
    assert Axis("x", choices=(False, True, None)).end(False) is None
    assert Axis("x", choices=("a", "b", "c")).end("a") is None


def test_bounds_are_those_of_the_schema():
    assert bounds("train.participation", "fedavg") == (0, 1)
    assert bounds("algorithm.mu", "fedprox") == (0, None)
    assert bounds("algorithm.mu", "no such method") == (None, None)
    assert bounds("train.nothing.here", "fedavg") == (None, None)
