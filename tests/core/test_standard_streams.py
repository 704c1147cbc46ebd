"""Standard streams that are closed, or on a disk that is full, in a process of their own."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from flbench.core import standard_streams
standard_streams.complete()
standard_streams.complete()
name = sys.argv[1]
with open(name, "w") as file:
    os.write(1, b"of a library")
    print("out")
    for _ in range(2):
        print("a message", file=sys.stderr, flush=True)
    file.write(str(file.fileno() > 2 and all(map(os.get_inheritable, range(3)))))
sys.exit(7)
"""


@pytest.mark.parametrize("redirected", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_are_closed_or_full_stop_nothing(tmp_path, redirected):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *command]
    found = subprocess.run(shell, capture_output=True, text=True, timeout=60)

    assert found.returncode == 7, found.stderr
    assert (tmp_path / "file").read_text() == "True"
    assert found.stdout.split() == (
        [] if ">&-" in redirected.split() else ["of", "a", "libraryout"]
    )
    assert found.stderr == ("" if "2>" in redirected else "a message\na message\n")


def test_a_reader_that_has_ended_is_an_error_as_for_other_programs(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()

    assert process.wait(timeout=60) != 7
