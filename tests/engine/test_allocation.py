"""Memory that tensors have freed stays with the process, unless the user configures it."""

import os
import platform
import subprocess
import sys

import pytest

from flbench.engine import allocation

ALLOCATE = """
import ctypes, resource, sys
from flbench.engine.allocation import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not configured")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(2**23) for _ in range(4)]
    for block in blocks:
        libc.memset(block, 1, 2**23)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(what: str) -> int:
    """Return how often memory came anew from the operating system in ten equal steps."""
    command = [sys.executable, "-c", ALLOCATE, what]
    plain = {key: value for key, value in os.environ.items() if key not in allocation.VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_equal_steps_need_no_new_memory():
    kept, usual = page_faults("keep"), page_faults("usual")

    assert kept < usual / 10


@pytest.mark.parametrize("name", allocation.VARIABLES)
def test_what_the_user_has_configured_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(allocation.ctypes, "CDLL", None)  # a call of it would fail

    assert not allocation.keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    for name in allocation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: object())

    assert not allocation.keep_freed_memory()


@pytest.mark.parametrize(
    ("largest", "calls"),
    [
        (2**28, [(-3, 2**28), (-1, 2**30)]),
        (2**25, [(-3, 2**28), (-3, 2**25), (-1, 2**30)]),
        (0, [(-3, 2**28), (-3, 2**25)]),  # freed memory is kept only where it is used again
    ],
)
def test_a_smaller_threshold_is_tried_where_glibc_refuses_a_large_one(largest, calls, monkeypatch):
    given = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            given.append((option, value))
            return int(option != allocation.M_MMAP_THRESHOLD or value <= largest)

    for name in allocation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: Library())

    assert allocation.keep_freed_memory() is (largest > 0)
    assert given == calls
