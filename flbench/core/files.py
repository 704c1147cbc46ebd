"""Reading of files, and atomic writing: after a crash a file has its old or its new content."""

import errno
import os
import re
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from flbench.core.errors import UserError

NOT_TEXT: Final = re.compile("[\0\ud800-\udfff]")
DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Error numbers of a failing disk (exit code 1). The user can correct other errors of a file."""
LARGEST: Final = 128 * 2**20
"""Largest size of a text file of a run, a study or a comparison, in bytes. Many times as much
memory is needed for what it contains."""
LONGEST_NAME: Final = 100
"""Bytes of a folder's name that comes from the user's data."""
LOCK_SECONDS: Final = 0.5
"""For how long a locked folder is tried again: a look at its lock holds it."""


def is_text(text: str) -> bool:
    r"""Return whether a text can be the name of a file, and be written in UTF-8.

    It must contain neither NUL nor a surrogate, by which Python stands for a byte of a file's name
    or of an argument that is not UTF-8.

    >>> is_text("Ünï"), is_text("\udcff"), is_text("\0")
    (True, False, False)
    """
    return NOT_TEXT.search(text) is None


def short_name(text: str) -> str:
    """Return a text as a part of a folder's name, which is cut behind 100 bytes."""
    return text.encode()[:LONGEST_NAME].decode(errors="ignore")


def check_regular(path: Path, limit: int | None = None) -> None:
    """Check that a path is a file or a folder. Reading a pipe or a device might never end.

    Args:
        path: The path. Links are followed.
        limit: Largest number of bytes; None for any number.

    Raises:
        OSError: The path does not exist, is a pipe, a socket or a device, or is larger than
            `limit`.
    """
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    if limit is not None and found.st_size > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))


def check_no_link(path: Path) -> None:
    """Check that a file of a folder of results is not a symbolic link.

    Its content is copied or published, or it is written to, and the target may be any file of this
    user. The folders above it may be links.

    Raises:
        UserError: It is one.
    """
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {os.readlink(path)}. Files of results are neither published nor"
            " written through links: replace it by the file, or remove it."
        )


def check_no_linked_folders(folder: Path) -> None:
    """Check that no folder below a folder of results is a link; see `check_no_link`.

    Args:
        folder: The folder, which may be a link itself.

    Raises:
        UserError: A folder below it is a symbolic link.
    """
    for above, names, _ in os.walk(folder):
        for name in names:
            check_no_link(Path(above, name))


def not_a_link(path: str, flags: int) -> int:
    """Open a file for writing, unless it is a symbolic link: the argument `opener` of `open`.

    A pipe of this name does not make `open` wait for a reader.

    Raises:
        OSError: The path is a link, or cannot be opened.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o666)


def cache_folder() -> Path:
    """Return the folder of flbench in the user's cache folder, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flbench"


def read_text(path: Path, limit: int = LARGEST) -> str:
    """Return the content of a file in UTF-8.

    Args:
        path: The file.
        limit: Largest number of bytes.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is larger than `limit`.
        UnicodeDecodeError: The content is not UTF-8.
    """
    check_regular(path, limit)
    return path.read_text(encoding="utf-8")


def write(path: Path, content: bytes) -> None:
    """Write a file atomically, in a folder that exists: to `NAME.part`, synced, and renamed.

    Raises:
        OSError: The file cannot be written. Its old content is unchanged.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "this folder does not exist", str(path.parent))
    beside = path.with_name(path.name + ".part")
    try:
        beside.unlink(missing_ok=True)
        # The file is created here. A link of this name would lead to a file of somebody else.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, mode=0o666), "wb") as file:
            file.write(content)
        sync(beside)
        beside.replace(path)
        sync(path.parent)
    except OSError as error:
        discard(beside)
        error.filename = error.filename or str(path)  # a full disk does not name the file
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


def is_locked(folder: Path) -> bool:
    """Return whether another process has locked a folder, which need not exist."""
    file = folder / ".lock"
    try:
        with FileLock(file, blocking=False) if file.exists() else nullcontext():
            return False
    except Timeout:
        return True
    except OSError:  # nobody can write there
        return False


def lock_folder(folder: Path) -> FileLock:
    """Lock a folder against other processes, until `release` or the end of this process.

    Args:
        folder: An existing folder; the lock is the file `.lock` in it.

    Raises:
        UserError: Another process has locked the folder, or the folder cannot be written to.
    """
    lock = FileLock(folder / ".lock", timeout=LOCK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"another process is writing to {folder}. Wait for it, or end it."
        ) from error
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}). Change its permissions, or choose"
            " another folder."
        ) from error
    return lock
