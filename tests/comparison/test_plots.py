"""The pictures of a comparison as figures in Python."""

import pytest
from matplotlib.figure import Figure

import flbench as fl
from flbench.analysis.figures import ACROSS, ALL
from tests.comparison.made import matrix

pytestmark = pytest.mark.slow

METHODS = {"fedavg": [0.6, 0.7, 0.65], "local": [0.8, 0.7, 0.75]}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A comparison in which `fedavg` sends 50 MB, and `local` nothing."""
    folder = tmp_path_factory.mktemp("one")
    for method, sent in {"local": 0, "fedavg": 50_000_000}.items():
        matrix(folder / method, {method: METHODS[method]}, sent=sent, is_rare=True)
    return fl.report(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for alpha in ("0.1", "1"):
        matrix(folder / alpha, METHODS, keys=(f"partition.alpha={alpha}",))
    return fl.report(folder)


def test_each_picture_has_the_width_that_is_asked_for(one, two):
    axes_of_bytes = []
    for name in ALL:
        found = two if name in ACROSS else one
        figure = found.plot(name, width=3.4)
        assert isinstance(figure, Figure)
        assert figure.get_figwidth() == 3.4 or name == "partition"
        figure.draw_without_rendering()
        axes_of_bytes += [axes for axes in figure.axes if "bytes" in axes.get_xlabel()]

    for axes in axes_of_bytes:
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert min(shown) == 0 < len(shown) - 1  # no negative numbers
    assert len(axes_of_bytes) >= 3


def test_pictures_and_places_that_do_not_exist_are_refused(one, two):
    with pytest.raises(fl.UserError, match=r"digits, alpha=0\.1"):
        two.plot("leaders")
    assert isinstance(two.plot("leaders", "digits, alpha=1"), Figure)
    for name in ("leader", *ACROSS):
        with pytest.raises(fl.UserError, match=name):
            one.plot(name)
