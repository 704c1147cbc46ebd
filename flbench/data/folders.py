"""The files of a folder or of a .zip file, which is unpacked to the cache once."""

import hashlib
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final
from zipfile import BadZipFile, ZipFile

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.text import one_line

MAX_BYTES: Final = 16 * 2**30  # of the content of a .zip file
DAMAGED: Final = (OSError, EOFError, RuntimeError, ValueError, BadZipFile, zlib.error)
"""What zipfile raises for damaged and encrypted files."""
LEFTOVERS: Final = ("__MACOSX", "lost+found")
DOCUMENTS: Final = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation)(\..*)?|.*\.md|thumbs\.db|desktop\.ini", re.I
)
"""Names of files that are expected beside samples."""
CACHED: Final = "unpacked"  # folder in the cache


class Folder:
    """The files below a folder, of a .zip file, or one file.

    Links are followed, wherever they lead, except for a link to a folder above itself. Hidden files
    and folders are left out.

    Args:
        path: The folder or file.

    Attributes:
        path: The folder or file.
        names: Sorted paths of the files, relative to the folder, with slashes.

    Raises:
        DataError: The path cannot be read, a link leads nowhere, or the .zip file is damaged or
            encrypted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_file = path.is_file() and path.suffix.lower() != ".zip"
        if self._is_file:
            self._root, self.names = path.parent, [path.name]
            return
        self._root = path if path.is_dir() else _unpacked(path)
        try:
            self.names = sorted(_names(self._root))
            "\n".join(self.names).encode()  # other names could not be written into results
        except (OSError, UnicodeEncodeError) as error:
            raise DataError(f"{path} cannot be read ({error}). Correct or remove it.") from error

    def file(self, name: str) -> Path:
        """Return the path of a file."""
        return self._root / name

    def place(self, name: str) -> str:
        """Return what error messages call a file."""
        return str(self.path) if self._is_file else f"{self.path}: {name}"

    def ending(self, suffixes: str | tuple[str, ...]) -> list[str]:
        """Return the files whose names end so, in capitals or not."""
        return [name for name in self.names if name.lower().endswith(suffixes)]

    def text(self, name: str) -> str:
        """Return the text of a file in UTF-8; lines end in a newline, whatever the file has."""
        try:
            return self.file(name).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.place(name)} is no text in UTF-8 ({error}). Save it as UTF-8, or remove it."
            ) from error

    def left_out(self, used: Iterable[str], kinds: str) -> tuple[str, ...]:
        """Return a note about the files beside those `used`, if any; `kinds` are those that are."""
        others = [
            name
            for name in sorted({*self.names} - {*used})
            if not DOCUMENTS.fullmatch(PurePosixPath(name).name)
        ]
        note = f"data: {len(others):,} files are not read ({kinds}), such as"
        return (f"{note} {one_line(others[0])}.",) if others else ()

    def fingerprint(self, names: Iterable[str]) -> str:
        """Return a SHA-256 (hex) over names, sizes and modification times of files."""
        sha = hashlib.sha256()
        for name in names:
            status = self.file(name).stat()
            sha.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0"))
        return sha.hexdigest()


def client_names(names: list[str]) -> tuple[str, ...]:
    """Return the names of the clients: their files' paths without what is common to all of them.

    >>> client_names(["heart/cleveland.csv", "heart/hungarian.csv"])
    ('cleveland', 'hungarian')
    >>> client_names(["north/data.csv", "south/data.csv"])
    ('north', 'south')
    """
    paths = [PurePosixPath(name).with_suffix("").parts for name in names]
    if len(set(paths)) < len(paths):  # `a.csv` and `a.CSV`
        return tuple(names)
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[1:] for path in paths]
    while len({path[-1] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[:-1] for path in paths]
    return tuple("/".join(path) for path in paths)


def _names(
    folder: Path, prefix: str = "", above: tuple[tuple[int, int], ...] = ()
) -> Iterator[str]:
    """Yield the relative paths of all files below a folder; see `Folder` about links.

    `prefix` is its path relative to the first folder, with a slash at the end, and `above` has
    device and inode of the folders above it.
    """
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name in LEFTOVERS:
            continue
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/", (*above, identity))
        elif entry.is_file():
            yield prefix + entry.name
        else:
            raise OSError(f"{prefix}{entry.name} is a link that leads nowhere, a pipe or a device")


def _unpacked(path: Path) -> Path:
    """Return the folder in the cache with the content of a .zip file.

    `ZipFile.extract` leaves no path out of this folder and makes no links.
    """
    try:
        files.check_regular(path)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        target = files.cache_folder() / CACHED / digest[:32]
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with ZipFile(path) as archive, tempfile.TemporaryDirectory(dir=target.parent) as beside:
            if (size := sum(entry.file_size for entry in archive.infolist())) > MAX_BYTES:
                raise ValueError(f"it would unpack to {size:,} bytes; the limit is {MAX_BYTES:,}")
            Path(beside, "files").mkdir()
            seen = set[str]()
            for entry in archive.infolist():
                entry.filename = entry.filename.replace("\\", "/")  # of Windows
                if entry.filename in seen and not entry.is_dir():
                    raise ValueError(f"it has two entries with the name {entry.filename}")
                seen.add(entry.filename)
                archive.extract(entry, Path(beside, "files"))
            try:
                Path(beside, "files").rename(target)
            except OSError:
                if not target.is_dir():  # otherwise another process has unpacked it meanwhile
                    raise
    except DAMAGED as error:
        raise DataError(
            f"{path} cannot be unpacked to {files.cache_folder()} ({error}). If it is damaged or"
            " encrypted, create it again; or give a folder."
        ) from error
    return target
