"""Searches for garbage in processes that belong to flbench, and in those of others."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
from flbench.core import garbage

{before}
with garbage.uncollected():
    kept = [[] for _ in range(100_000)]
print(gc.get_freeze_count(), gc.isenabled())
"""


@pytest.mark.parametrize(
    ("before", "owned"),
    [
        ("garbage.own_process()", True),
        ("", False),
        ("gc.set_threshold(garbage.NEW_OBJECTS)", False),  # a user's own setting
    ],
)
def test_only_a_process_of_flbench_leaves_imported_objects_out_of_searches(before, owned):
    code = PROGRAM.format(before=before)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    frozen, is_enabled = done.stdout.split()
    assert is_enabled == "True"
    assert (int(frozen) > 100_000) == owned
