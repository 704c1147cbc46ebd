"""The pictures of a comparison as figures in Python."""

import pytest
from matplotlib.figure import Figure

import flbench as fl
from flbench.analysis.figures import ACROSS, ALL
from tests.comparison.made import matrix

pytestmark = pytest.mark.slow

METHODS = {"fedavg": [0.6, 0.7, 0.65], "local": [0.8, 0.7, 0.75]}
NONE = ("new-clients",)  # no run here has such clients


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    matrix(folder, METHODS, is_rare=True)
    return fl.report(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for alpha in ("0.1", "1"):
        matrix(folder / alpha, METHODS, keys=(f"partition.alpha={alpha}",))
    return fl.report(folder)


def test_each_picture_has_the_width_that_is_asked_for(one, two):
    for name in ALL:
        found = two if name in ACROSS else one
        if name in NONE:
            with pytest.raises(fl.UserError, match="join later"):
                found.plot(name)
            continue
        for width in (9.0, 3.4):
            figure = found.plot(name, width=width)
            assert isinstance(figure, Figure)
            assert figure.get_figwidth() == width or name == "partition"
            figure.draw_without_rendering()


def test_one_of_several_places_must_be_named(two):
    with pytest.raises(fl.UserError, match=r"name a place\. The places: 'digits, alpha=0\.1'"):
        two.plot("leaders")
    with pytest.raises(fl.UserError, match="Did you mean `digits, alpha=1`"):
        two.plot("leaders", "digits, alpha=2")
    assert isinstance(two.plot("leaders", "digits, alpha=1"), Figure)


def test_pictures_that_do_not_exist_are_refused_with_the_reason(tmp_path):
    matrix(tmp_path, {"fedavg": [0.5]})
    found = fl.report(tmp_path)

    with pytest.raises(fl.UserError, match="Did you mean `leaders`"):
        found.plot("leader")
    for name in ("recall-gain", "class-intervals", "prices", *ACROSS):
        with pytest.raises(fl.UserError, match=name):
            found.plot(name)
