"""Whether the tests of servers were asked for."""

from typing import Final

VARIABLE: Final = "FLBENCH_TEST_SERVERS"
"""Environment variable that `python -m tests.servers` sets in the namespaces of the tests."""
