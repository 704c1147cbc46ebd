"""The process that calls Ray: it ends with all that it has started, whatever ends first."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flbench.core.errors import ConfigError
from flbench.workers.pool import LostError
from flbench.workers.ray_driver import RayDriver

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

SECONDS = 10.0  # until everything has ended
SCRIPT = """
import os, time
from flbench.workers.ray_driver import RayDriver
driver = RayDriver(None, cpus=1)
print(driver.call(os.getpid), driver.call(os.getenv, "OMP_NUM_THREADS"), driver._folder, flush=True)
time.sleep(100)
"""


def session(leader: int) -> dict[int, str]:
    """Return the command lines of the processes of a session that have not ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text()
    return found


def ends(leader: int, folder: str) -> bool:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if not session(leader) and not Path(folder).exists():
            return True
        time.sleep(0.05)
    return False


def refuse() -> None:
    raise ConfigError("correct it")


def connected_to() -> str:
    return str(ray.get_runtime_context().gcs_address)


def test_nothing_is_left_after_the_owner_is_killed():
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    )
    leader, threads, folder = owner.stdout.readline().split()
    assert any("gcs_server" in line for line in session(int(leader)).values())
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert threads == "3"  # its environment is that of its owner

    owner.kill()
    owner.communicate()

    assert ends(int(leader), folder)


@pytest.mark.full
@pytest.mark.parametrize("server", ["gcs_server", "raylet/raylet", None])
def test_loss_of_a_server_or_of_the_process_is_an_error_at_once(server):
    driver = RayDriver(None, cpus=1)
    leader, folder = driver.call(os.getpid), driver._folder
    with pytest.raises(ConfigError, match="correct it"):
        driver.call(refuse)
    victims = [pid for pid, line in session(leader).items() if server and server in line]
    begin = time.monotonic()
    for victim in victims or [leader]:
        os.kill(victim, signal.SIGKILL)

    with pytest.raises(LostError, match="has ended, or cannot be reached"):
        driver.call(time.sleep, 60)

    assert time.monotonic() - begin < SECONDS
    assert ends(leader, folder)


def test_interrupt_ends_it():
    driver = RayDriver(None, cpus=1)
    leader, folder = driver.call(os.getpid), driver._folder
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.call(time.sleep, 60)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)

    assert ends(leader, folder)


@pytest.mark.full
def test_a_session_that_the_user_has_opened_is_joined_and_stays():
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        address = connected_to()
        with RayDriver(None) as driver:
            assert driver.call(connected_to) == address
        assert ray.cluster_resources()["CPU"] == 1
    finally:
        ray.shutdown()
