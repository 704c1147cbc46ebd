"""Writing files so that a crash leaves the old content or the new one, and never a half."""

import errno
import fcntl
import os
from pathlib import Path
from typing import IO, Final

from flbench.core.errors import UserError

DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""The machine's failures (exit code 1); other errors of a file are the user's to mend."""


def write(path: Path, content: bytes) -> None:
    """Write a file beside, sync and rename it.

    Raises: OSError if that is not possible; what was there stays.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "this folder does not exist", str(path.parent))
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(content)
        sync(beside)
        beside.replace(path)
        sync(path.parent)
    except OSError:
        discard(beside)
        raise


def discard(path: Path) -> None:
    """Remove a file if that is possible."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(folder: Path) -> IO[str]:
    """Return the lock of a folder, which is held until it is closed or the process ends.

    Raises: UserError if another process holds it, or the folder cannot be written to.
    """
    try:
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror}).") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            f"another process is writing to {folder}. Wait for it, or end it."
        ) from error
    return lock
