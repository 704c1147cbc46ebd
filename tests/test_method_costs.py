"""`benchmarks/method_costs.py`: lines and levels of methods."""

import pytest

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
