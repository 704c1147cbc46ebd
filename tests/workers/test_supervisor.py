"""Studies end in a bounded time: signals that Python cannot handle, servers that have ended."""

import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from flbench.core.errors import RunError
from flbench.workers.supervisor import StudyStopped, Supervisor

SCRIPT = """
import ctypes, signal, sys, time
from pathlib import Path
from flbench.core.errors import RunError
from flbench.workers import supervisor
from flbench.workers.supervisor import Supervisor

supervisor.STOP_SECONDS, supervisor.PATIENCE, supervisor.IMPATIENCE = 1.5, 0.5, 0.3

def block():
    # Like a call of Ray: no signal handler of Python runs until it returns.
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    print("blocked", flush=True)
    ctypes.CDLL(None).sleep(60)

with Supervisor() as found:
    found.note = "Resume with: X."
    found.report = lambda: Path(sys.argv[1]).write_text("report")
    if sys.argv[2] != "0":
        found.watch([("127.0.0.1", int(sys.argv[2]))], is_local=True)
    %s
"""


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0), backlog=50) as made:
        yield made


def port_of(server: socket.socket) -> int:
    return server.getsockname()[1]


@pytest.fixture
def begin(tmp_path):
    """Start a script within a Supervisor; return it when it has printed a line."""
    processes = []

    def made(body, port=0):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT % body, str(tmp_path / "report"), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        process.stdout.readline()
        time.sleep(0.3)  # from the line to the call
        return process

    yield made
    for process in processes:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen) -> tuple[int, str, float]:
    """Wait for the end; return exit code, standard error and seconds."""
    start = time.monotonic()
    said = process.communicate(timeout=30)[1]
    return process.returncode, said, time.monotonic() - start


WITHIN = "with found.waiting(): block()"


@pytest.mark.parametrize(
    ("number", "body"),
    [(signal.SIGINT, "block()"), (signal.SIGTERM, "block()"), (signal.SIGINT, WITHIN)],
)
@pytest.mark.slow
def test_process_that_is_blocked_ends_after_a_signal(begin, tmp_path, number, body):
    process = begin(body)
    process.send_signal(number)

    code, said, seconds = end(process)

    assert code == 130
    assert said == "note: interrupted. Resume with: X.\n"
    assert (tmp_path / "report").read_text() == "report"
    assert seconds < 10


@pytest.mark.slow
def test_termination_within_ray_ends_the_process_at_once(begin, tmp_path):
    """Ray's library would end it soon, without a message, when its servers have the signal too."""
    process = begin(WITHIN)
    process.send_signal(signal.SIGTERM)

    code, said, seconds = end(process)

    assert code == 130
    assert said == "note: interrupted. Resume with: X.\n"
    assert not (tmp_path / "report").exists()
    assert seconds < 1


LEAVES_RAY = """
    try:
        print("begun", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(60)
"""
SERVERS_ARE_ASKED = """
    found._all_answer = lambda: time.sleep(60)
    time.sleep(2 * supervisor.INTERVAL)
    try:
        print("begun", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(1)  # as Ray's library ends the process
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", [LEAVES_RAY, SERVERS_ARE_ASKED])
def test_termination_is_as_quick_while_servers_are_watched(begin, server, body):
    """The main thread may be outside of Ray, and the supervisor's thread may be busy."""
    process = begin(body, port_of(server))
    process.send_signal(signal.SIGTERM)

    code, said, seconds = end(process)

    assert code == 130
    assert said == "note: interrupted. Resume with: X.\n"
    assert seconds < 1


@pytest.mark.slow
def test_process_that_is_blocked_ends_after_the_loss_of_a_server(begin, tmp_path, server):
    process = begin(WITHIN, port_of(server))
    time.sleep(1)
    assert process.poll() is None
    server.close()

    code, said, seconds = end(process)

    assert code == 1
    assert said == "error: a server of Ray has ended, or cannot be reached. Resume with: X.\n"
    assert (tmp_path / "report").read_text() == "report"
    assert seconds < 10


@pytest.mark.slow
def test_second_signal_ends_the_process_at_once(begin, tmp_path):
    process = begin(WITHIN)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)

    code, said, seconds = end(process)

    assert code == 130
    assert "Resume with: X." in said
    assert seconds < 1


@pytest.mark.slow
def test_report_that_does_not_end_is_left_unwritten(begin):
    body = "supervisor.REPORT_SECONDS = 0.5; found.report = lambda: time.sleep(60); block()"
    process = begin(body)
    process.send_signal(signal.SIGTERM)

    code, said, seconds = end(process)

    assert code == 130
    assert "Resume with: X." in said
    assert seconds < 10


@pytest.mark.slow
def test_main_thread_that_returns_ends_by_itself(begin, tmp_path):
    """The process is not ended while the main thread writes the report."""
    body = """
    try:
        with found.waiting():
            print("begun", flush=True)
            while True:
                time.sleep(0.05)
                found.check()
    except KeyboardInterrupt:
        found.write_report()
        sys.exit(7)
"""
    process = begin(body)
    process.send_signal(signal.SIGINT)

    code, said, _ = end(process)

    assert (code, said) == (7, "")
    assert (tmp_path / "report").exists()


@pytest.mark.slow
def test_error_of_ray_after_the_loss_of_a_server_is_told_as_the_loss(begin, server):
    body = """
    print("begun", flush=True)
    with found.waiting():
        while not found.is_lost():
            time.sleep(0.01)
        raise ValueError("what Ray says")
"""
    process = begin(body, port_of(server))
    server.close()

    code, said, _ = end(process)

    assert code == 1
    assert said == "error: a server of Ray has ended, or cannot be reached. Resume with: X.\n"


def test_signal_interrupts_python_outside_of_ray():
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), Supervisor():
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.set_wakeup_fd(-1) == -1


def test_signal_within_ray_is_raised_at_the_next_step():
    reached = []

    def steps(supervisor):
        signal.raise_signal(signal.SIGINT)
        reached.append("still in Ray")
        assert supervisor.is_over()
        supervisor.check()

    with pytest.raises(KeyboardInterrupt), Supervisor() as supervisor, supervisor.waiting():
        steps(supervisor)
    assert reached == ["still in Ray"]


@pytest.mark.parametrize("is_noted", [False, True])
def test_second_signal_leaves_ray_in_a_process_that_is_not_to_be_ended(is_noted):
    """As in a notebook. The thread may note a signal before the main thread handles it."""
    reached = []

    def steps(supervisor):
        if is_noted:
            supervisor._stopped = time.monotonic()
        signal.raise_signal(signal.SIGINT)
        reached.append("still in Ray")
        signal.raise_signal(signal.SIGINT)
        reached.append("left")

    with (
        pytest.raises(KeyboardInterrupt),
        Supervisor(ends_process=False) as supervisor,
        supervisor.waiting(),
    ):
        steps(supervisor)
    assert reached == ["still in Ray"]


def test_errors_of_a_cluster_that_is_there_are_raised_as_they_are(server):
    def steps(supervisor):
        supervisor.watch([server.getsockname()], is_local=True)
        supervisor.check()
        raise ValueError("mine")

    with (
        pytest.raises(ValueError, match="mine"),
        Supervisor() as supervisor,
        supervisor.waiting(),
    ):
        steps(supervisor)


def test_server_of_another_machine_may_be_silent_for_a_while(monkeypatch):
    """A server that is started again keeps the study; one that stays away does not."""
    now = [100.0]
    supervisor = Supervisor()
    monkeypatch.setattr("flbench.workers.supervisor.time.monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        supervisor.watch([address], is_local=False)

    supervisor._look()
    now[0] += 9
    supervisor._look()
    supervisor.check()  # raises nothing
    with socket.create_server(address):
        supervisor._look()
    supervisor._look()
    now[0] += 9
    supervisor._look()
    supervisor.check()
    now[0] += 2
    supervisor._look()

    with pytest.raises(StudyStopped):
        supervisor.check()
    with pytest.raises(RunError, match="has ended"), supervisor.waiting():
        supervisor.check()


def test_server_that_cannot_be_asked_is_not_watched():
    """A proxy or a firewall may be between."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    supervisor = Supervisor()

    supervisor.watch([address], is_local=True)

    assert not supervisor.is_lost()


def test_in_a_thread_servers_are_watched_and_signals_are_left_to_the_caller(server):
    """A notebook's server or a web application calls `fl.tune` outside of the main thread."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen = []

    def supervised():
        with Supervisor(ends_process=False) as found:
            found.watch([("127.0.0.1", port_of(server))], is_local=True)
            seen.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
            server.close()
            seen.append(found.is_lost())

    thread = threading.Thread(target=supervised)
    thread.start()
    thread.join(20)

    assert not thread.is_alive()
    assert seen == [handlers, True]
