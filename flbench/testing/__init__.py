"""Tests for methods: the contract that every method keeps, and helpers for tests of one method.

A package with a method of its own runs the contract with a test file of four lines:

```python
from flbench.testing import Contract


class TestSlow(Contract):
    methods = ("slow",)
```

`run`, `build` and `after` are for the tests that a method needs besides, such as identities with
other methods. This package needs pytest, which `pip install "flbench[testing]"` installs.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "flbench.testing needs pytest, which is not installed. Install it with:"
        ' pip install "flbench[testing]"',
        name="pytest",
    ) from error

# Failed assertions of the contract show the compared values, as those of a test file do.
pytest.register_assert_rewrite("flbench.testing.contract")

from flbench.testing.contract import Contract, Played  # noqa: E402
from flbench.testing.setting import (  # noqa: E402
    SMALL,
    Silent,
    after,
    build,
    config_of,
    fingerprint,
    played,
    reproducible,
    run,
    summary_of,
    with_method,
    write_npz,
)

__all__ = [
    "SMALL",
    "Contract",
    "Played",
    "Silent",
    "after",
    "build",
    "config_of",
    "fingerprint",
    "played",
    "reproducible",
    "run",
    "summary_of",
    "with_method",
    "write_npz",
]
