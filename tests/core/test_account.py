"""A process without an entry in the list of accounts, and one whose current folder was deleted."""

import getpass
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from flbench.core import account

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

    account.complete()
    account.complete()

    assert getpass.getuser() == f"uid{os.getuid()}"
    home = Path("~").expanduser()
    assert home.stat().st_mode & 0o777 == 0o700
    assert len(list(home.parent.iterdir())) == 1


@pytest.mark.parametrize("planted", ["open", "link"])
def test_home_is_never_a_place_of_another_user(planted, nobody, tmp_path):
    taken = tmp_path / f"flbench-home-{os.getuid()}"
    if planted == "open":
        taken.mkdir()
        taken.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir()
        taken.symlink_to(tmp_path / "theirs")

    account.complete()

    assert Path.home() != taken
    assert Path.home().stat().st_mode & 0o777 == 0o700


def test_what_the_user_has_set_is_kept(nobody, monkeypatch):
    monkeypatch.setenv("USER", "joe")
    monkeypatch.setenv("HOME", "/somewhere")

    account.complete()

    assert getpass.getuser() == "joe"
    assert os.environ["HOME"] == "/somewhere"


def test_command_in_a_deleted_folder_says_so(tmp_path):
    """Libraries fail there with messages of their own, some of them while they are imported."""
    script = (
        "import os, sys; from flbench.cli.app import main;"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.exit(main(['run', 'fedavg']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: the current folder is gone")
    assert "cd ~" in ended.stderr


@pytest.mark.parametrize("chosen", [None, "/chosen"])
def test_matplotlib_has_a_place_beside_a_home_that_cannot_be_written(
    nobody, monkeypatch, tmp_path, chosen
):
    home = str(tmp_path / "missing")  # root may write to every folder that is there
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("MPLCONFIGDIR", chosen or "")

    account.complete()

    assert os.environ["HOME"] == home
    place = Path(os.environ["MPLCONFIGDIR"])
    assert str(place) == chosen or place.stat().st_mode & 0o777 == 0o700
