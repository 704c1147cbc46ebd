"""The start of a process: no account, closed streams, searches for garbage."""

import getpass
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from flbench.core import startup

VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME")


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user id that no account has, without the variables of a session."""

    def none(user):
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", none)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def test_without_an_account_libraries_find_a_name_and_a_private_home(nobody):
    with pytest.raises(KeyError):
        getpass.getuser()

    startup.complete_account()
    startup.complete_account()

    assert getpass.getuser() == f"uid{os.getuid()}"
    home = Path("~").expanduser()
    assert home.stat().st_mode & 0o777 == 0o700
    assert len(list(home.parent.iterdir())) == 1


def test_what_the_user_has_set_is_kept(nobody, monkeypatch):
    monkeypatch.setenv("USER", "joe")
    monkeypatch.setenv("HOME", "/somewhere")

    startup.complete_account()

    assert getpass.getuser() == "joe"
    assert os.environ["HOME"] == "/somewhere"


STREAMS = """
import os, sys
from flbench.core import startup
startup.open_streams()
startup.open_streams()
name = sys.argv[1]
with open(name, "w") as file:
    os.write(1, b"of a library")
    print("out")
    for _ in range(2):
        print("a message", file=sys.stderr, flush=True)
    file.write(str(file.fileno() > 2 and all(map(os.get_inheritable, range(3)))))
sys.exit(7)
"""


@pytest.mark.parametrize("redirected", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_streams_that_are_closed_stop_nothing(tmp_path, redirected):
    command = [sys.executable, "-c", STREAMS, str(tmp_path / "file")]
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *command]
    found = subprocess.run(shell, capture_output=True, text=True, timeout=60)

    assert found.returncode == 7, found.stderr
    assert (tmp_path / "file").read_text() == "True"
    assert found.stdout.split() == (
        [] if ">&-" in redirected.split() else ["of", "a", "libraryout"]
    )
    assert found.stderr == ("" if "2>" in redirected else "a message\na message\n")
