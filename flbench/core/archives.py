"""Compressed tar archives: those of strangers are read as data, and own ones name no folders."""

import lzma
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from flbench.core.errors import DataError
from flbench.core.text import printable

MOST_FILES: Final = 100_000
"""Largest number of entries of an archive."""
LARGEST_FILE: Final = 512 * 2**20
"""Largest size of one file of an archive, in bytes."""
SMALL: Final = 64 * 2**20
"""Archives whose files have at most this number of bytes may be compressed by any ratio."""
LARGEST_RATIO: Final = 200
"""Largest size of the files of other archives, as a multiple of the size of the archive."""

_HEADER: Final = 2**20  # bytes of the headers before one entry
# The folders of an absolute path, also of one in an address of a file or a database.
_FOLDERS: Final = re.compile(
    r"""(?:(?<=file:)|(?<=sqlite:)|(?<![\w.~/-])(?!(?<=:)//))(?:~\w*)?/+"""
    r"""(?:[^\s/"'`]+/+)*(?=[^\s/"'`])"""
)


def unpack(file: Path, folder: Path, is_known: Callable[[str], bool]) -> None:
    """Write the files of an archive into a folder.

    Links, devices, sparse files, and names that lead out of the folder are refused. Entries that
    describe a folder are skipped.

    Args:
        file: The archive, a tar file compressed by xz.
        folder: An existing folder that only this user can write to. If an error is raised, it has
            some of the files.
        is_known: Whether an archive may have a file of this name (the last part of its path).

    Raises:
        DataError: The archive is damaged, or has an entry that is refused; the message names it.
    """
    left = largest_content(file.stat().st_size)
    try:
        with lzma.open(file) as content:
            source = _Limited(content)
            # The mode `r|` reads from the beginning to the end, and never seeks.
            with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]
                for count, entry in enumerate(archive):
                    left -= entry.size
                    _check(entry, folder, is_known)
                    if count == MOST_FILES or left < 0:
                        raise _RefusedError("it has more or larger files than results have")
                    source.left = entry.size + _HEADER
                    if not entry.isdir():
                        archive.extract(entry, folder, filter="data")
    except (_RefusedError, tarfile.FilterError) as error:
        raise DataError(
            f"{file} is refused: {printable(str(error))}. Use an archive that `flbench pack` wrote."
        ) from error
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be unpacked ({printable(str(error))}). Restore it from a copy."
        ) from error


def largest_content(size: int) -> int:
    """Return the largest number of bytes of the files of an archive of a size in bytes."""
    return max(SMALL, LARGEST_RATIO * size)


def without_folders(tree: Any, key: str = "") -> Any:
    """Return a tree of values of JSON in which absolute paths have lost their folders.

    Args:
        tree: The values. A text that is nothing but a path may have spaces.
        key: Key of the values in the tree above; `command` is a command of the shell.

    >>> without_folders({"command": "/bin/flbench '--out=/home/me/a b/c'", "root": "/my data/d"})
    {'command': 'flbench --out=c', 'root': 'd'}
    """
    if isinstance(tree, dict):
        return {_without(name): without_folders(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [without_folders(value) for value in tree]
    if key == "command" and isinstance(tree, str):
        return shlex.join(map(_without, shlex.split(tree)))
    return _without(tree) if isinstance(tree, str) else tree


class _RefusedError(Exception):
    """An archive has more than it may have."""


class _Limited:
    """The decompressed content of an archive, of which `left` bytes may be read.

    tarfile reads the headers of an entry whole, before it says their size.

    Args:
        content: The content.
    """

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.left = _HEADER

    def read(self, size: int) -> bytes:
        """Return the next bytes: at most `size`, and none at the end."""
        piece = self._content.read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise _RefusedError("the headers of an entry are too large")
        return piece


def _check(entry: tarfile.TarInfo, folder: Path, is_known: Callable[[str], bool]) -> None:
    """Raise a _RefusedError for an entry that archives of results do not have."""
    path = folder / entry.name.lstrip("/")
    if not (entry.isdir() or (entry.isreg() and not entry.issparse() and is_known(path.name))):
        raise _RefusedError(f"`{entry.name}` is not a file of a run, a comparison or a study")
    if entry.isreg() and (not 0 <= entry.size <= LARGEST_FILE or path.exists()):
        raise _RefusedError(f"`{entry.name}` is there twice, or too large")


def _without(text: str) -> str:
    """Return a path or an option with a path without its folders, or a text without those in it."""
    found = re.fullmatch(r"([\w.-]+=)?(?:~\w*)?/[^\"'`:,;=]*/([^/]+)/?", text)
    return f"{found[1] or ''}{found[2]}" if found else _FOLDERS.sub("", text)
