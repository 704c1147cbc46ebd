"""Marks of tests that need optional packages.

`pytest.importorskip` imports a package in each test process when the tests are collected, also
where none of its tests run: PEFT takes a second, MLflow half of one.
"""

from importlib.util import find_spec

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test if a package is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")
