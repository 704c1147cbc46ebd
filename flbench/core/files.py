"""Atomic writing of files: after a crash a file has its old content or its new content."""

import errno
import fcntl
import os
from pathlib import Path
from typing import IO, Final

from flbench.core.errors import UserError

DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Error numbers of a failing disk (exit code 1). The user can correct other errors of a file."""


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: write to `NAME.part` beside it, sync, and rename.

    Args:
        path: The file; its folder must exist.
        content: The new content.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
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
    """Remove a file; do nothing if it does not exist or cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def sync(path: Path) -> None:
    """Flush a file or folder to the disk (fsync).

    Raises:
        OSError: The disk fails, or the path does not exist.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(folder: Path) -> IO[str]:
    """Lock a folder against other processes.

    Args:
        folder: An existing folder; the lock is the file `.lock` in it.

    Returns:
        The open lock file. The folder is locked until it is closed or the process ends.

    Raises:
        UserError: Another process has locked the folder, or the folder cannot be written to.
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
