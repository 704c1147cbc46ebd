"""Reading of compressed tar archives that may come from a stranger.

Python's own extraction follows links and creates what an archive describes. Here an archive is a
sequence of named contents: each one is checked, read in pieces, and written to a file that this
module creates.
"""

import lzma
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from flbench.core.errors import DataError
from flbench.core.text import printable

MOST_FILES: Final = 100_000
"""Largest number of entries of an archive."""
LARGEST_FILE: Final = 512 * 2**20
"""Largest size of one file of an archive, in bytes."""
SMALL: Final = 64 * 2**20
"""Archives whose content has at most this number of bytes may be compressed by any ratio."""
LARGEST_RATIO: Final = 200
"""Largest size of the content of other archives, as a multiple of the size of the archive."""
DEEPEST: Final = 16
"""Largest number of folders above a file of an archive."""

_MEMORY: Final = 256 * 2**20  # bytes for decompression; `xz -9` needs 65 MiB
_HEADER: Final = 2**20  # bytes of the headers before one entry
_PIECE: Final = 2**16  # bytes that are read and written at once
_REGULAR: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)


def unpack(file: Path, folder: Path, is_known: Callable[[str], bool]) -> None:
    """Write the files of an archive into a folder.

    Links, devices, sparse files, and names that lead out of the folder are refused; nothing of an
    archive decides about owners, modes or times. Entries that describe a folder are skipped.

    Args:
        file: The archive, a tar file compressed by xz.
        folder: An existing folder that only this user can write to. If an error is raised, it has
            some of the files.
        is_known: Whether an archive may have a file of this name (the last part of its path).

    Raises:
        DataError: The archive is damaged, or has an entry that is refused; the message names it.
    """
    cure = "Use an archive that `flbench pack` wrote."
    try:
        size = file.stat().st_size
        with file.open("rb") as compressed:
            source = _Decompressed(compressed, largest_content(size))
            # The mode `r|` reads from the beginning to the end, and never seeks.
            with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]
                folders = {folder}
                for entry in _entries(archive, source):
                    if entry.type != tarfile.DIRTYPE:
                        path = folder / _checked(entry, is_known)
                        source.header = entry.size + _HEADER
                        _write(archive.extractfile(entry), path, folders)
    except _RefusedError as error:
        raise DataError(f"{file} is refused: {error}. {cure}") from error
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be unpacked ({printable(str(error))}). Restore it from a copy."
        ) from error


def largest_content(size: int) -> int:
    """Return the largest number of bytes of the content of an archive of a size in bytes.

    >>> largest_content(1) == SMALL, largest_content(2**20)
    (True, 209715200)
    """
    return max(SMALL, LARGEST_RATIO * size)


def is_name_of_member(name: str) -> bool:
    """Return whether an archive can have a file of this name.

    Args:
        name: Path of the file in the archive.

    >>> is_name_of_member("runs/a b/summary.json"), is_name_of_member("../summary.json")
    (True, False)
    """
    path = PurePosixPath(name)
    return (
        not path.is_absolute()
        and 0 < len(path.parts) <= DEEPEST + 1
        and not any(part == ".." or "\\" in part for part in path.parts)
        and printable(name) == name
        and all(len(os.fsencode(part)) <= 255 for part in path.parts)
    )


class _RefusedError(Exception):
    """An archive has more than it may have."""


class _Decompressed:
    """The decompressed content of an archive, of limited size.

    Args:
        compressed: The open archive.
        limit: Largest number of bytes of the content.

    Attributes:
        header: Number of bytes that may be read until the beginning of the next file's content.
    """

    def __init__(self, compressed: IO[bytes], limit: int) -> None:
        self._compressed = compressed
        self._limit = limit
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        self._read = 0
        self.header = _HEADER

    def read(self, size: int) -> bytes:
        """Return the next bytes: at most `size`, and none at the end."""
        pieces: list[bytes] = []
        missing = size
        while missing and not self._decompressor.eof:
            more = self._compressed.read(_PIECE) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not more:
                raise EOFError("its end is missing")
            piece = self._decompressor.decompress(more, missing)
            pieces.append(piece)
            missing -= len(piece)
        self._read += size - missing
        self.header -= size - missing
        if self._read > self._limit:
            raise _RefusedError(f"its content is larger than {self._limit:,} bytes")
        if self.header < 0:
            raise _RefusedError(f"the headers of an entry are larger than {_HEADER:,} bytes")
        return b"".join(pieces)


def _entries(archive: tarfile.TarFile, source: _Decompressed) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of an archive, at most `MOST_FILES`."""
    for count in range(MOST_FILES + 1):
        source.header = _HEADER
        entry = archive.next()
        if entry is None:
            return
        if count == MOST_FILES:
            raise _RefusedError(f"it has more than {MOST_FILES:,} entries")
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all that it has seen
        yield entry


def _checked(entry: tarfile.TarInfo, is_known: Callable[[str], bool]) -> PurePosixPath:
    """Return the path of the file that an entry describes, below the folder; or refuse it."""
    name = printable(entry.name)
    if entry.type not in _REGULAR or entry.sparse is not None:
        raise _RefusedError(f"`{name}` is not a regular file but a link, a device or sparse")
    path = PurePosixPath(entry.name)
    if not is_name_of_member(entry.name):
        raise _RefusedError(f"`{name}` is not a path below the folder of the archive")
    if not is_known(path.name):
        raise _RefusedError(f"`{name}` is not a file of a run, a comparison or a study")
    if not 0 <= entry.size <= LARGEST_FILE:
        raise _RefusedError(f"`{name}` is larger than {LARGEST_FILE:,} bytes")
    return path


def _write(content: IO[bytes] | None, path: Path, folders: set[Path]) -> None:
    """Write a file that does not exist yet; `folders` has the folders that were made."""
    if content is None:
        raise _RefusedError(f"`{path.name}` has no content")
    try:
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise _RefusedError(f"`{path.name}` is there twice") from error
    with os.fdopen(handle, "wb") as file:
        while piece := content.read(_PIECE):
            file.write(piece)
