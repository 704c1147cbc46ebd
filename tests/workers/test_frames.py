"""Messages between processes of this machine."""

import os
import socket

import numpy as np
import pytest

from flbench.workers import frames
from flbench.workers.frames import Connection, SharedArray


@pytest.fixture
def ends():
    one, other = map(Connection, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1, 7, frames.INLINE // 8, 100_000])
@pytest.mark.parametrize("in_memory", [True, False])
def test_arrays_arrive_as_they_were_and_can_be_written_to(ends, monkeypatch, size, in_memory):
    if not in_memory:  # as on a system without such files
        monkeypatch.delattr(os, "memfd_create")
    sent = {"a": np.arange(size, dtype=np.float64), "b": np.ones((3, size), np.int32), "c": "text"}
    before = descriptors()

    ends[0].send(sent)
    found = ends[1].receive()

    assert found["c"] == "text"
    assert all(np.array_equal(found[key], sent[key]) for key in "ab")
    assert [found[key].dtype for key in "ab"] == [np.float64, np.int32]
    found["a"] += 1
    assert np.array_equal(sent["a"], np.arange(size))
    del found
    assert descriptors() == before


def test_shared_array_is_not_copied_and_others_do_not_see_what_is_written(ends):
    shared = SharedArray.of(np.arange(10**6, dtype=np.float32))
    before = descriptors()

    ends[0].send((shared, shared))
    one, other = ends[1].receive()
    one[:] = 0

    assert np.array_equal(other, np.arange(10**6))
    assert np.array_equal(shared.array(), np.arange(10**6))
    del one, other
    assert descriptors() == before
    shared.close()


def test_functions_without_an_import_path_are_sent_with_their_code(ends):
    factor = 3

    ends[0].send(lambda x: factor * x)

    assert ends[1].receive()(2) == 6


def test_end_of_the_other_process_is_noticed(ends):
    ends[0].close()

    with pytest.raises(EOFError):
        ends[1].receive()
