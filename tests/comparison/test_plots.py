"""The pictures of a comparison as figures in Python."""

import pytest
from matplotlib.figure import Figure

import flbench as fl
from tests.comparison.made import matrix

pytestmark = pytest.mark.slow

METHODS = {"fedavg": [0.6, 0.7], "local": [0.8, 0.7]}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    matrix(folder, METHODS)
    return fl.report(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for alpha in ("0.1", "1"):
        matrix(folder / alpha, METHODS, keys=(f"partition.alpha={alpha}",))
    return fl.report(folder)


@pytest.mark.parametrize(
    "name",
    ["leaders", "recalls", "recall_gains", "clients", "gains", "convergence", "prices"],
)
def test_a_single_place_need_not_be_named(one, name):
    assert isinstance(getattr(one.plot, name)(), Figure)
    assert isinstance(getattr(one.plot, name)("digits"), Figure)


def test_ranks_need_several_places(one, two):
    with pytest.raises(fl.UserError, match="ranks need two data sets or settings"):
        one.plot.ranks()
    assert isinstance(two.plot.ranks(), Figure)


def test_one_of_several_places_must_be_named(two):
    with pytest.raises(fl.UserError, match=r"name a place\. The places: 'digits, alpha=0\.1'"):
        two.plot.leaders()
    with pytest.raises(fl.UserError, match="Did you mean `digits, alpha=1`"):
        two.plot.leaders("digits, alpha=2")
    assert isinstance(two.plot.leaders("digits, alpha=1"), Figure)


def test_pictures_that_do_not_exist_are_refused_with_the_reason(tmp_path):
    matrix(tmp_path, {"fedavg": [0.5]})
    found = fl.report(tmp_path)

    with pytest.raises(fl.UserError, match="measured against the method `local`"):
        found.plot.gains()
    with pytest.raises(fl.UserError, match="there is only the baseline"):
        found.plot.recall_gains()
