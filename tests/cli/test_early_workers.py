"""When `flbench run` prepares workers of this machine."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("library", ["libtorch_cpu", "libtorch_python"])
def test_ctrl_c_in_the_middle_of_the_imports_is_one_line(tmp_path, library):
    process = subprocess.Popen(
        [sys.executable, "-m", "flbench", "run", "fedavg", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    libraries = Path(f"/proc/{process.pid}/maps")
    while library not in libraries.read_text():
        time.sleep(0.002)
    time.sleep(0.01)

    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")
