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


@pytest.mark.parametrize("least", [0, 30_000])
def test_axes_of_bytes_have_no_negative_numbers(tmp_path, least):
    for method, sent in {"local": least, "fedavg": 50_000_000}.items():
        matrix(tmp_path / method, {method: METHODS[method]}, sent=sent)

    found = [
        axes
        for name in ("convergence", "prices")
        for axes in fl.report(tmp_path).plot(name).axes
        if "bytes" in axes.get_xlabel()
    ]

    for axes in found:
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert len(shown) >= 2
        assert min(shown) >= 0
        assert (0 in shown) == (least == 0)
    assert len(found) == 3


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
