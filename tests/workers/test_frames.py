"""Messages between processes of this machine."""

import fcntl
import os
import resource
import socket
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from flbench.core.errors import RunError
from flbench.workers import frames
from flbench.workers.frames import Connection, SharedArray, readable


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


@pytest.fixture
def limit_of_files():
    """Function that sets the number of files that this process may have open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_above_1023_are_waited_for(ends, limit_of_files):
    limit_of_files(2048)
    here, there = ends
    with socket.socket(fileno=fcntl.fcntl(there.fileno(), fcntl.F_DUPFD, 1100)) as many:
        assert readable([many, here], 0) == []
        here.send(1)
        assert readable([many, here]) == [many]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_process_with_too_many_open_files_is_told_the_cure(ends, limit_of_files, is_sent):
    large = np.zeros(10**5)
    if is_sent:
        ends[0].send(large)
    limit_of_files(512)
    with ExitStack() as opened:
        with suppress(OSError):
            while True:
                opened.enter_context(open(os.devnull, "rb"))

        with pytest.raises(RunError, match=r"ulimit -n.*engine\.workers=1"):
            ends[1].receive() if is_sent else ends[0].send(large)
