"""Worker processes: what they cannot read is told to the process that has sent it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flbench.core import children
from flbench.jobs.job import Job
from flbench.jobs.launchers.attempts import Attempts
from flbench.workers.fork_server import LocalProcess, started
from flbench.workers.frames import packed
from tests.support import SMALL, config_of


class Elsewhere:
    """An object that another process cannot read, because its module is missing there."""

    def __reduce__(self):
        return __import__, ("a_module_of_the_user",)


@pytest.fixture(scope="module", autouse=True)
def _server():
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    with started():
        yield
    monkeypatch.undo()


@pytest.mark.slow
def test_an_object_that_a_worker_cannot_read_is_the_reason_why_it_does_not_begin():
    with (
        LocalProcess(list, Elsewhere()) as process,
        pytest.raises(ModuleNotFoundError, match="a_module_of_the_user"),
    ):
        process.check(None)


def test_an_argument_that_a_worker_cannot_read_is_the_error_of_the_call():
    with LocalProcess(list, "ab") as process:
        assert process.check(None)
        process.call(packed(("append", (Elsewhere(),))))
        with pytest.raises(ModuleNotFoundError, match="a_module_of_the_user"):
            process.answer()

        process.call(packed(("copy", ())))
        assert process.answer() == ["a", "b"]  # it goes on


def test_a_process_that_dies_is_no_error_of_the_call():
    with LocalProcess(list) as process:
        process.check(None)
        process.call(packed(("extend", (Dying(),))))
        with pytest.raises(EOFError):
            process.answer()


IMPORTING = """
import os, time
from pathlib import Path
from flbench.workers import fork_server
server = fork_server.ForkServer()
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_the_server_ends_at_once_with_its_parent_also_while_it_imports(delay):
    parent = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], env=children.environment(), stdout=subprocess.PIPE
    )
    server = int(parent.stdout.readline())
    time.sleep(delay)
    parent.kill()
    begin = time.monotonic()
    parent.wait()
    parent.stdout.close()

    while is_running(server) and time.monotonic() - begin < 10:
        time.sleep(0.005)

    assert time.monotonic() - begin < 0.5  # of a server that imports for longer


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Dying:
    """An object that ends the process that reads it."""

    def __reduce__(self):
        return os._exit, (3,)


def test_a_job_is_begun_again_as_often_as_the_user_allows():
    told = []
    config = config_of(*SMALL)
    job = Job("a", "ft", "", "", 0, config, {})
    attempts = Attempts(1, told.append)

    assert attempts.after_loss(job, "It died.") is None
    assert told == [f"{job.title}: It died. It is started again."]
    ended = attempts.after_loss(job, "It died.")
    assert ended is not None
    assert ended.reason == "It died. This happened 2 times."
