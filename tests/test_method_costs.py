"""`benchmarks/method_costs.py`: lines and levels of methods, and differences to loops."""

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.algorithms.loops import EXACT, assert_equal
from tests.support import benchmark_script

SOURCE = '''"""A module.

With a docstring of three lines."""

import math  # counted once


def area(radius: float) -> float:
    """Return an area."""
    # A comment.
    text = """a string
that is code"""
    return math.pi * (
        radius**2 + len(text)
    )
'''


@pytest.fixture(scope="module")
def script():
    """The module of the script."""
    with benchmark_script("method_costs") as module:
        yield module


def test_lines_are_those_of_code(script):
    assert script.lines_of(SOURCE) == 7  # import, def, two of the string, three of the return


@pytest.mark.parametrize(
    ("method", "level"), [("fedavg", 0), ("fedprox", 1), ("fedadam", 3), ("scaffold", 3), ("ft", 4)]
)
def test_level_is_that_of_the_highest_hook(script, method, level):
    assert script.level_of(method) == level


def test_largest_difference_of_a_method_is_that_of_its_tests(script):
    plugin, one = script.Differences(), torch.ones((), dtype=torch.float64)
    adam = SimpleNamespace(callspec=SimpleNamespace(params={"method": "fedyogi"}))
    for name, item in (("test_fedadam.py", adam), ("test_floco.py", SimpleNamespace())):
        item.path = Path(name)
        for size in (EXACT / 4, EXACT / 2, EXACT / 8):
            call = plugin.pytest_runtest_call(item)
            next(call)
            assert_equal(one + size, one, "a number")
            with suppress(StopIteration):
                call.send(None)

    assert plugin.largest.keys() == {"fedyogi", "floco"}
    assert [*plugin.largest.values()] == pytest.approx([EXACT / 2] * 2, rel=1e-3)


def test_page_has_the_differences_that_were_measured(script):
    differences = json.loads(script.LOOPS.read_text("utf-8"))

    assert tuple(differences) == script.METHODS
    assert all(0 < value < 1e-10 for value in differences.values())
    assert script.PAGE.read_text("utf-8") == script.page()
