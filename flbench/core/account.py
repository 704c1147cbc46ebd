"""The user's account, as libraries expect it: a name, a home folder, and a current folder.

In a container, a process may have a user id without an entry in the list of accounts, and no
`HOME`. PyTorch then finds no name for its cache, and Ray no place for its results, and both raise
errors that do not mention the account.
"""

import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import Final

from flbench.core.errors import UserError

_MATPLOTLIB: Final = "MPLCONFIGDIR"
_NAMES: Final = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where Python's `getpass` looks, in order


def complete() -> None:
    """Set `LOGNAME` and `HOME` in the environment of this process if nothing else says them.

    The name is `uid` with the user's id. The home folder is a folder of this user in the folder for
    temporary files, which other users cannot read. If the user's own home folder cannot be written,
    matplotlib has its cache there, about which it would print two warnings otherwise.
    """
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        account = None
    if account is None and not any(os.environ.get(name) for name in _NAMES):
        os.environ["LOGNAME"] = f"uid{os.getuid()}"
    if account is None and not os.environ.get("HOME"):
        os.environ["HOME"] = str(_temporary_home())
    if not os.environ.get(_MATPLOTLIB) and not _can_write(Path.home()):
        os.environ[_MATPLOTLIB] = str(_temporary_home())


def check_current_folder() -> None:
    """Check that the current folder exists, which libraries read when they are imported.

    Raises:
        UserError: It was deleted, or this user cannot find its path.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the current folder is gone ({error.strerror}): it was deleted or replaced while this"
            " terminal was in it. Go to another folder, for example with: cd ~"
        ) from error


def _can_write(folder: Path) -> bool:
    """Return whether this process can make files in a folder; no file is made or opened."""
    return os.access(folder, os.W_OK | os.X_OK)


def _temporary_home() -> Path:
    """Return a folder of this user alone; the same one for each process of the user."""
    place = Path(tempfile.gettempdir()) / f"flbench-home-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        there = place.lstat()
        is_private = not stat.S_IMODE(there.st_mode) & 0o077
        if stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid() and is_private:
            return place
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="flbench-home-"))  # another user has taken the name
