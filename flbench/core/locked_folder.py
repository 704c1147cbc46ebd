"""The base of run folders and study folders: one process writes to them, file by file."""

import secrets
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Self

from filelock import FileLock

from flbench.core import files
from flbench.core.errors import RunError, UserError


class LockedFolder:
    """A folder that one process writes to. Files are replaced atomically.

    `create` and `reopen` of a subclass lock the folder against other processes until `close`.

    Args:
        path: An existing folder; it is not locked.
        resume_command: Command that resumes what the folder belongs to, for messages; None for the
            one that resumes the folder itself.

    Attributes:
        path: The folder.
        resume_command: The command.
        marker: File without which the folder cannot be resumed.
        option: Key of the configuration (with a dot), or argument, for the folder above.
    """

    marker: ClassVar[str]
    option: ClassVar[str]

    def __init__(self, path: Path, resume_command: str | None = None) -> None:
        self.path = path
        self.resume_command = resume_command or self.command_to_resume(path)
        self._lock: FileLock | None = None

    @classmethod
    def command_to_resume(cls, path: Path) -> str:
        """Return the command that resumes a folder of this kind."""
        raise NotImplementedError

    @classmethod
    def make(cls, parent: Path, name: str, inside: str) -> Self:
        """Make and lock a new folder `parent/name-DATE-TIME-xxxxxxxx/`.

        Args:
            parent: Folder above; created if it does not exist.
            name: Beginning of the folder's name.
            inside: Name of an empty folder that is made in it.

        Raises:
            UserError: The folder cannot be made or written to.
            RunError: The disk is full or failed.
        """
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = parent / f"{name}-{now}-{secrets.token_hex(4)}"
            (path / inside).mkdir(parents=True)
        except OSError as error:
            kind = RunError if error.errno in files.DISK_ERRORS else UserError
            raise kind(
                f"`{cls.option}`: {path} cannot be written ({error.strerror}). Make space, or"
                f" choose another with `{cls.option}`."
            ) from error
        folder = cls(path)
        folder.lock()
        return folder

    def lock(self) -> None:
        """Lock the folder against other processes.

        Raises:
            UserError: Another process has locked the folder, it cannot be written to, or a folder
                in it is a link.
        """
        files.check_no_linked_folders(self.path)
        self._lock = files.lock_folder(self.path)

    def close(self) -> None:
        """Unlock the folder, so that other processes can write to it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder atomically.

        Args:
            name: Path of the file within the folder.
            content: The new content; text is encoded as UTF-8.

        Raises:
            OSError: The file cannot be written. Its old content is unchanged.
        """
        files.write(self.path / name, content.encode() if isinstance(content, str) else content)
