"""Searches for garbage in processes that belong to flbench, and in those of others."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
from flbench.core import garbage

if {owned}:
    garbage.own_process()
with garbage.uncollected():
    kept = [[] for _ in range(100_000)]
print(gc.get_freeze_count(), gc.isenabled())
"""


@pytest.mark.parametrize("owned", [True, False])
def test_only_a_process_of_flbench_leaves_imported_objects_out_of_searches(owned):
    code = PROGRAM.format(owned=owned)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    frozen, is_enabled = done.stdout.split()
    assert is_enabled == "True"
    assert (int(frozen) > 100_000) == owned
