"""`benchmarks/method_costs.py`: differences of methods to loops, and the page of what they cost."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.algorithms.loops import EXACT, assert_equal
from tests.support import benchmark_script


@pytest.fixture(scope="module")
def script():
    """The module of the script."""
    with benchmark_script("method_costs") as module:
        yield module


def test_largest_difference_of_a_method_is_that_of_its_tests(script):
    plugin, one = script.Differences(), torch.ones((), dtype=torch.float64)
    adam = SimpleNamespace(callspec=SimpleNamespace(params={"method": "fedyogi"}))
    for name, item in (("test_fedadam.py", adam), ("test_hfcd_loops.py", SimpleNamespace())):
        item.path = Path(name)
        for size in (EXACT / 4, EXACT / 2, EXACT / 8):
            call = plugin.pytest_runtest_call(item)
            next(call)
            assert_equal(one + size, one, "a number")
            torch.testing.assert_close({"w": one}, {"w": one})
            with suppress(StopIteration):
                call.send(None)

    assert plugin.largest.keys() == {"fedyogi", "hfcd"}
    assert [*plugin.largest.values()] == pytest.approx([EXACT / 2] * 2, rel=1e-3)


def test_page_has_what_was_measured(script):
    assert script.PAGE.read_text("utf-8") == script.page()
