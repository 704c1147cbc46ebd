"""Workers of this machine, the server that forks them, and the command are killed at random.

Other programs that make files in shared memory disturb the tests; `unshare -m` gives them one of
their own.

`FLBENCH_FAULTS_SEED` sets the seed, and `FLBENCH_FAULTS_KILLS` the number of kills (default 12).
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from flbench.core import startup
from flbench.core.errors import RunError
from flbench.core.tree import digest
from flbench.engine.local_processes import LocalEngine
from flbench.testing import SMALL, build, summary_of
from flbench.workers import nesting
from tests.engine.playing import played

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
KILLS = int(os.environ.get("FLBENCH_FAULTS_KILLS", "12"))
KEYS = (
    *(*SMALL, "model.name=lenet5", "engine.name=sequential", "train.participation=1"),
    *("train.rounds=12", "output.checkpoint_every=1", "tracking.mlflow=false"),
)
COMMANDS = {
    "run": ("run", "hfcd", "engine.workers=3", *KEYS),
    "compare": ("compare", "hfcd", "fedavg", "ft", "--seeds", "2", "--jobs", "2", *KEYS),
}
"""One command of each kind, without its folder."""
ENDED = 1.0  # seconds after which no process of a killed command may be left
RAYS_ENDED = 30.0  # the same for processes of Ray, which notice the end of a driver later
FINISHED = 900.0  # seconds after which a command that was not killed counts as hanging

pytestmark = [pytest.mark.faults, pytest.mark.timeout(4 * 3600)]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    variables = startup.environment(OMP_NUM_THREADS="1")
    variables.pop(nesting.VARIABLE, None)
    return subprocess.Popen(
        [sys.executable, "-m", "flbench", *arguments],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def below(process: int) -> dict[int, str]:
    """Return the ids of all descendants of a process, with their command lines."""
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            entries = (folder / "stat").read_text().rpartition(")")[2].split()
            if entries[0] != "Z":
                parents[int(folder.name)] = int(entries[1])
                lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    found, left = {}, [process]
    while left:
        one = left.pop()
        mine = [child for child, parent in parents.items() if parent == one]
        found |= {child: lines[child] for child in mine}
        left += mine
    return found


def is_left(process: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def left_after(processes: set[int], seconds: float) -> set[int]:
    """Return the processes that are left; wait for their end for at most some seconds."""
    end = time.monotonic() + seconds
    while (left := {one for one in processes if is_left(one)}) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def in_shared_memory() -> set[str]:
    """Return the names of the files in shared memory, without those of running processes.

    Python's semaphores are files there. After the import of joblib their names contain the process:
    `sem.loky-PROCESS-...`.
    """
    names = {name: re.search(r"-(\d+)-", name) for name in os.listdir("/dev/shm")}
    return {name for name, found in names.items() if not (found and is_left(int(found[1])))}


def left_in_shared_memory(before: set[str], seconds: float) -> set[str]:
    """Return the files in shared memory that are new; wait for their end."""
    end = time.monotonic() + seconds
    while (left := in_shared_memory() - before) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def digests(folder: Path) -> list[str]:
    """Return the digests of all finished runs below a folder, sorted."""
    return sorted(
        summary_of(file.parent)["weights_digest"]
        for file in folder.rglob("summary.json")
        if (file.parent / "metrics.csv").is_file()
    )


def resumed(kind: str, out: Path) -> list[str]:
    """Return the arguments of a call that goes on after a kill, or begins anew."""
    marks = {"run": "*/*/config.yaml", "compare": "*/comparison.json"}
    found = sorted(out.glob(marks[kind]))
    if not found:
        return [*COMMANDS[kind], "--out", str(out)]
    if kind == "run":
        return ["run", "--resume", str(found[-1].parent)]
    return [kind, "--resume", str(found[-1].parent)]


def servers(main: int) -> list[int]:
    """Return the processes below a process that fork workers; workers have the same title."""
    found = [one for one, line in below(main).items() if "multiprocessing.forkserver" in line]
    return [one for one in found if one not in {w for s in found for w in below(s)}]


def chosen(main: int, draw: random.Random) -> tuple[str, int]:
    """Return a process to kill, and its kind: command, fork server or worker."""
    roots = servers(main)
    workers = [one for root in roots for one in below(root)]
    kinds = {"command": [main], "fork server": roots, "worker": workers}
    kind = draw.choice([name for name, some in kinds.items() if some])
    return kind, draw.choice(sorted(kinds[kind]))


@pytest.mark.parametrize("kind", COMMANDS)
def test_killed_processes_change_no_digest_and_leave_none_behind(kind, tmp_path):
    draw, shared = random.Random(f"{SEED} {kind}"), in_shared_memory()
    straight, out = tmp_path / "straight", tmp_path / "killed"
    begin = time.monotonic()
    twin = start([*COMMANDS[kind], "--out", str(straight)])
    said = twin.communicate()[1].decode()
    whole = time.monotonic() - begin
    assert twin.returncode == 0, said
    expected = digests(straight)
    assert expected
    assert not left_in_shared_memory(shared, RAYS_ENDED)
    done, faults, turn, wanted = 0, [], 0, max(1, KILLS // 2)

    while done < wanted and not faults:
        turn += 1
        folder = out / str(turn)
        process = start([*COMMANDS[kind], "--out", str(folder)])
        while True:  # until the command ends by itself
            with suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.1, 0.6) * whole)
            if process.poll() is None and done < wanted:
                family = below(process.pid)
                rays = {one for one, line in family.items() if "ray" in line}
                name, victim = chosen(process.pid, draw)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    done += 1
                if name == "command":
                    process.communicate()
                    for some, seconds in ((family.keys() - rays, ENDED), (rays, RAYS_ENDED)):
                        if left := left_after(set(some), seconds):
                            lines = [family[one] for one in left]
                            faults.append(f"left after {seconds:g} s: {lines}")
                    process = start(resumed(kind, folder))
                continue
            said = process.communicate(timeout=FINISHED)[1].decode()
            if "Traceback (most recent call last)" in said:
                faults.append(said)
            # A worker may be lost too often. The sentence says so, and the command is resumed.
            if process.returncode == 0:
                break
            if not done or process.returncode != 1:
                faults.append(f"exit code {process.returncode}: {said}")
                break
            process = start(resumed(kind, folder))
        if not faults and (found := digests(folder)) != expected:
            faults.append(f"digests {found} in place of {expected}")
        if left := left_in_shared_memory(shared, RAYS_ENDED):
            faults.append(f"{sorted(left)} are left in shared memory")
    assert not faults, faults


def test_workers_killed_in_the_middle_of_rounds_change_no_bit(monkeypatch):
    monkeypatch.delenv(nesting.VARIABLE, raising=False)
    draw, main = random.Random(f"{SEED} rounds"), os.getpid()
    built = build("algorithm.name=hfcd", "model.name=lenet5", "engine.workers=3")
    expected = digest([played(built, built.engine, 4).clients])
    used, said = built.config.engine, []
    engine = LocalEngine(built.engine, built.net, built.federation, used, said.append)

    def workers() -> list[int]:
        return [one for server in servers(main) for one in below(server)]

    def kill() -> None:
        if victims := workers():
            with suppress(ProcessLookupError):
                os.kill(draw.choice(sorted(victims)), signal.SIGKILL)

    with closing(engine):
        begin = time.monotonic()
        assert digest([played(built, engine, 4).clients]) == expected
        whole = time.monotonic() - begin
        for _ in range(KILLS):
            killer = threading.Timer(draw.uniform(0.0, whole), kill)
            killer.start()
            try:
                found = digest([played(built, engine, 4).clients])
            except RunError as error:  # the same worker was killed four times
                said.append(str(error))
                found = expected
            killer.join()
            assert found == expected
    assert not left_after(set(workers()), ENDED)
    assert all("lost" in one for one in said)
