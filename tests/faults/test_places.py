"""Runs with workers in places that make it hard to start processes, and runs that are ended.

The digest is that of one process, whoever trains. As root, `unshare` gives a call a `/dev/shm` of
its own, and `setpriv` another user.
"""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from flbench.core import startup
from flbench.workers import nesting
from tests.faults.test_worker_kills import below, left_after

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

LIMIT = 900.0  # seconds after which a call counts as hanging
NOBODY = 65534
"""Id of a user without processes and without rights."""

RUN = """
import json, os, sys, threading
from flbench.engine import local_processes as local

def trained(workers=2, **engine):
    import flbench as fl

    close, used = local.LocalEngine.close, []

    def noting(engine):
        used.append(engine.report()["workers"])
        close(engine)

    local.LocalEngine.close = noting
    found = fl.run(
        "hfcd", partition={"clients": 5, "alpha": 0.5, "samples": 300}, model="lenet5",
        train={"rounds": 3, "local_epochs": 1}, engine={"workers": workers, **engine},
        output={"dir": os.environ["OUT"]},
    )
    local.LocalEngine.close = close
    return {"digest": found.digest, "workers": max(used, default=1)}
"""
"""A run that says how many workers it has used."""

PLAIN = "print(json.dumps(trained()), flush=True)"
IN_THREAD = """
found = []
thread = threading.Thread(target=lambda: found.append(trained()))
thread.start()
thread.join()
print(json.dumps(found[0]), flush=True)
"""
IN_DAEMON = """
import multiprocessing

def child(pipe):
    pipe.send(trained())

ours, theirs = multiprocessing.get_context("fork").Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,), daemon=True)
process.start()
print(json.dumps(ours.recv()), flush=True)
process.join()
"""
IN_RAY_TASK = """
import ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
path = list(sys.path)

@ray.remote
def task():
    sys.path[:] = path
    return trained()

print(json.dumps(ray.get(task.remote())), flush=True)
ray.shutdown()
"""
OVER_1024_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
files = [open(os.devnull) for _ in range(1500)]
print(json.dumps(trained()), flush=True)
"""
SHM = "mount -t tmpfs -o {options} none /dev/shm && {fill}exec "
PLACES = {
    # name: what comes before the command in the shell, the script, and how many processes train
    "plain": ("", PLAIN, 2),
    "in a thread": ("", IN_THREAD, 2),
    "in a daemon process": ("", IN_DAEMON, 1),
    "in a task of Ray": ("", IN_RAY_TASK, 1),
    "with 1,500 open files": ("", OVER_1024_FILES, 2),
    "ulimit -n 64": ("ulimit -n 64; exec ", PLAIN, 2),
    "ulimit -n 64, in a thread": ("ulimit -n 64; exec ", IN_THREAD, 2),
    "/dev/shm is read-only": (SHM.format(options="ro", fill=""), PLAIN, 1),
    "/dev/shm is full": (
        SHM.format(options="size=64k", fill="! head -c 99999 /dev/zero > /dev/shm/x; "),
        PLAIN,
        1,
    ),
    # Sockets of Python's fork server have paths of at most 107 characters.
    "a TMPDIR of 120 characters": ("TMPDIR=$LONG exec ", PLAIN, 1),
    "no HOME": ("unset HOME; exec ", PLAIN, 2),
    "no account, no HOME, no further process": (
        f"unset HOME; exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
        " prlimit --nproc=1 ",
        PLAIN,
        1,
    ),
}


def call(tmp_path: Path, before: str, script: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a script that runs in a place."""
    file, out, long = tmp_path / "script.py", tmp_path / "out", tmp_path / ("t" * 120)
    for folder in (out, long):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    file.write_text(RUN + script)
    variables = startup.environment(OUT=str(out), LONG=str(long), OMP_NUM_THREADS="1")
    variables.pop(nesting.VARIABLE, None)
    shell = ["unshare", "-m", "sh", "-c", f'{before or "exec "}{sys.executable} "$0"', str(file)]
    with subprocess.Popen(
        shell, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        family: set[int] = set()
        end = time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < end:
            family |= set(below(process.pid))
            time.sleep(0.1)
        process.kill()
        said, errors = process.communicate()
    assert not left_after(family, 10.0), "processes are left behind"
    return process.returncode, said, errors


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The digest of one process."""
    code, said, errors = call(
        tmp_path_factory.mktemp("one"), "", PLAIN.replace("trained()", "trained(1)")
    )
    assert code == 0, errors
    return json.loads(said.splitlines()[-1])["digest"]


def others_may_run_python() -> bool:
    """Return whether users without rights can start this Python, which may be in a home folder."""
    user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    # `setpriv` itself still has the rights of root when it starts a command, and `env` has not.
    command = [*user, "env", sys.executable, "-c", ""]
    return not subprocess.run(command, check=False, capture_output=True).returncode


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("place", PLACES)
def test_a_run_has_its_digest_in_every_place(place, expected, tmp_path):
    before, script, workers = PLACES[place]
    if "setpriv" in before and not others_may_run_python():
        pytest.skip(f"other users may not run {sys.executable}")

    code, said, errors = call(tmp_path, before, script)

    assert code == 0, errors
    assert "Traceback" not in errors
    [found] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert found == {"digest": expected, "workers": workers}


NET = """
import torch
from torch import nn
import flbench as fl

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(torch.relu(self.first(x.flatten(1))))
"""
CELL = """
given = dict(
    model=Net, partition={{"clients": 8, "samples": 1200}}, output={{"dir": {out!r}}},
    train={{"rounds": {rounds}, "local_epochs": 5}},
    engine={{"name": "sequential", "workers": {workers}}},
)
found = fl.run("fedavg", **given)
print(found.digest, len(fl.__name__))
"""


class Kernel:
    """A kernel of a notebook, and what its cells print."""

    def __init__(self, folder):
        from jupyter_client.manager import KernelManager

        variables = startup.environment()
        variables.pop(nesting.VARIABLE, None)
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=variables, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)
        self.process = self.manager.provisioner.pid

    def begin(self, code):
        return self.client.execute(code)

    def ended(self, message):
        """Return how a cell ended, what it printed, and its error."""
        out = []
        while True:
            one = self.client.get_iopub_msg(timeout=LIMIT)
            if one["parent_header"].get("msg_id") != message:
                continue
            kind, content = one["msg_type"], one["content"]
            if kind == "stream" and content["name"] == "stdout":
                out.append(content["text"])
            if kind == "error":
                out.append(f"{content['ename']}: {content['evalue']}")
            if kind == "status" and content["execution_state"] == "idle":
                return "".join(out)

    def run(self, code):
        return self.ended(self.begin(code))

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def test_net_of_a_cell_trains_in_workers_and_the_kernel_can_be_interrupted(tmp_path):
    kernel, out = Kernel(tmp_path), str(tmp_path / "out")
    try:
        kernel.run(NET)
        one = kernel.run(CELL.format(out=out + "1", rounds=60, workers=1)).split()[0]
        whole = kernel.begin(CELL.format(out=out + "2", rounds=60, workers=2))
        most = 0
        while not Path(out + "2").exists() or not list(Path(out + "2").rglob("summary.json")):
            most = max(most, len(below(kernel.process)))
            time.sleep(0.05)
        many = kernel.ended(whole).split()[0]
        servers = set(below(kernel.process))  # Python's fork server and its resource tracker
        stopped = kernel.begin(CELL.format(out=out + "3", rounds=2000, workers=2))
        while len(family := set(below(kernel.process)) - servers) < 2:
            time.sleep(0.05)
        kernel.manager.interrupt_kernel()
        error = kernel.ended(stopped)
        left = left_after(family, 1.0)
        goes_on = kernel.run("print(found.digest)")
    finally:
        kernel.close()

    assert one == many
    assert len(servers) == 2
    assert most >= 4  # and two workers
    assert "KeyboardInterrupt" in error
    assert "resume" in error
    assert not left
    assert goes_on.strip() == many
    assert not left_after(servers, 1.0)


ENDS = {
    # name: the signal, or the bytes that are typed; "" closes the terminal. Whether a line is said
    "Ctrl-C": (b"\x03", True),
    "SIGTERM": (signal.SIGTERM, True),
    "SIGHUP": (signal.SIGHUP, False),
    "closed terminal": (b"", False),
    "SIGKILL": (signal.SIGKILL, False),
}
COMMAND = (
    *("run", "hfcd", "partition.clients=5", "partition.samples=600", "model.name=lenet5"),
    *("engine.workers=2", "train.local_epochs=1", "train.rounds=150", "tracking.mlflow=false"),
    *("output.checkpoint_every=1", "output.checkpoint_seconds=0", "train.participation=1"),
)


def in_terminal(arguments: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start flbench in a terminal of its own; return the process and the other end."""
    ours, theirs = pty.openpty()

    def take() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    variables = startup.environment(OMP_NUM_THREADS="1", TERM="dumb")
    variables.pop(nesting.VARIABLE, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "flbench", *arguments],
        env=variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=take,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    return process, ours


def read(terminal: int) -> str:
    """Return what a terminal shows."""
    found = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            piece = b""
        if not piece:
            return found.decode(errors="replace")
        found += piece


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The digest of the command that nobody ends."""
    out = tmp_path_factory.mktemp("straight")
    variables = startup.environment(OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "flbench", *COMMAND, "engine.workers=1", "--out", str(out)]
    subprocess.run(command, env=variables, check=True, capture_output=True)
    [summary] = out.rglob("summary.json")
    return json.loads(summary.read_text())["weights_digest"]


@pytest.mark.parametrize("end", ENDS)
def test_an_ended_run_leaves_no_process_and_resumes(end, straight, tmp_path):
    how, is_said = ENDS[end]
    process, terminal = in_terminal([*COMMAND, "--out", str(tmp_path)])
    shown = ""
    while len(below(process.pid)) < 2 or not list(tmp_path.rglob("last.safetensors")):
        assert process.poll() is None, shown
        shown += read(terminal)
        time.sleep(0.02)
    time.sleep(0.5)
    family = set(below(process.pid))
    if isinstance(how, bytes) and how:
        os.write(terminal, how)
    elif isinstance(how, bytes):
        os.close(terminal)
    else:
        process.send_signal(how)
    process.wait(20)
    left = left_after(family, 1.0)
    shown += read(terminal) if how != b"" else ""
    [run] = [file.parent for file in tmp_path.rglob("config.yaml")]
    again = subprocess.run(
        [sys.executable, "-m", "flbench", "run", "--resume", str(run)],
        env=startup.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert not left
    assert again.returncode == 0, again.stderr
    assert json.loads((run / "summary.json").read_text())["weights_digest"] == straight
    assert "Traceback" not in shown
    if is_said:
        assert shown.count("interrupted") == 1
        assert "--resume" in shown
