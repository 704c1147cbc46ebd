"""Worker processes: what they cannot read is told to the process that has sent it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flbench.core import startup
from flbench.workers import nesting
from flbench.workers.pool import CouldNotBeginError
from flbench.workers.process_pool import ProcessPool, SharedArray


class Elsewhere:
    """An object that another process cannot read, because its module is missing there."""

    def __reduce__(self):
        return __import__, ("a_module_of_the_user",)


class Numbers:
    """An object of a worker."""

    def __init__(self, given):
        self.given = given

    def total(self, other):
        self.given += 1  # no other worker sees it
        return float(self.given.sum()) + float(np.sum(other))

    def process(self):
        return os.getpid()

    def fail(self, sentence):
        raise ValueError(sentence)


@pytest.fixture(autouse=True)
def _may_have_workers(monkeypatch):
    monkeypatch.delenv(nesting.VARIABLE, raising=False)


def ended(pool):
    while not (found := pool.ended(1.0)):
        pass
    return found


@pytest.mark.slow
def test_an_object_that_a_worker_cannot_read_is_the_reason_why_it_does_not_begin():
    with closing(ProcessPool(Numbers, Elsewhere(), most=1)) as pool:
        pool.submit("a", "process")
        with pytest.raises(CouldNotBeginError, match="a_module_of_the_user"):
            ended(pool)


@pytest.mark.slow
def test_an_argument_that_a_worker_cannot_read_is_the_error_of_the_call():
    with closing(ProcessPool(Numbers, np.ones(3), most=1)) as pool:
        pool.submit("a", "total", Elsewhere())
        with pytest.raises(ModuleNotFoundError, match="a_module_of_the_user"):
            ended(pool)

        pool.submit("b", "total", np.arange(4))
        assert ended(pool) == [("b", 12.0, None)]  # it goes on


@pytest.mark.slow
def test_a_lost_worker_gives_its_call_back_and_the_others_go_on():
    shared = SharedArray(np.ones((2, 3)))
    with closing(shared), closing(ProcessPool(Numbers, shared, most=2)) as pool:
        for key in "ab":
            pool.submit(key, "process")
        processes = {}
        while len(processes) < 2:
            processes |= {one.key: one.value for one in pool.ended(1.0)}
        os.kill(processes["a"], signal.SIGKILL)

        found = []
        for key in "abcdef":
            pool.submit(key, "total", 1)
            found += ended(pool)

        assert [one.key for one in found] == list("abcdef")
        values = [one.value for one in found if one.lost is None]
        assert set(values) <= {13.0 + 6 * k for k in range(6)}  # each process has its own copy
        assert len(values) >= 5
    assert not any(Path(f"/proc/{one}").exists() for one in processes.values())


@pytest.mark.slow
def test_a_failure_hides_neither_results_nor_other_failures_of_the_same_look():
    with closing(ProcessPool(Numbers, np.ones(3), most=4)) as pool:
        pool.submit("a", "fail", "first")
        pool.submit("b", "fail", "second")
        pool.submit("c", "total", 1)
        pool.submit("d", "total", 2)
        while not all(future.done() for future in pool._running):
            time.sleep(0.01)

        assert sorted(pool.ended(1.0)) == [("c", 7.0, None), ("d", 8.0, None)]
        said = []
        for _ in range(2):
            with pytest.raises(ValueError, match=r"first|second") as raised:
                pool.ended(1.0)
            said.append(str(raised.value))
        assert sorted(said) == ["first", "second"]


IMPORTING = """
import os, time
from pathlib import Path
from flbench.workers import fork_server
fork_server.start()
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3])
@pytest.mark.processes
def test_the_server_ends_at_once_with_its_parent_also_while_it_imports(delay):
    parent = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], env=startup.environment(), stdout=subprocess.PIPE
    )
    family = list(map(int, parent.stdout.readline().split()))
    time.sleep(delay)
    parent.kill()
    begin = time.monotonic()
    parent.wait()
    parent.stdout.close()

    while any(map(is_running, family)) and time.monotonic() - begin < 10:
        time.sleep(0.005)

    assert time.monotonic() - begin < 1.0  # of a server that imports for longer


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
