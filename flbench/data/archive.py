"""Uniform reading of folders and .zip files, within limits of size and number of entries."""

import hashlib
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final, Self

from flbench.core import files
from flbench.core.errors import DataError

MAX_BYTES: Final = 16 * 2**30
MAX_ENTRY: Final = 256 * 2**20
MAX_ENTRIES: Final = 20_000_000
PACKED_BY: Final = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_BZIP2,
    zipfile.ZIP_LZMA,
)
ZIP_OR_FOLDER: Final = "neither a folder nor an intact .zip or .npz file"
ENCRYPTED: Final = 0x01 | 0x20 | 0x40  # flags of an entry: a password, a patch, strong encryption
DAMAGED: Final = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError, lzma.LZMAError, struct.error, tokenize.TokenError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What zipfile, NumPy and Pillow raise for damaged files."""


class Archive:
    """The files below a folder, or the entries of a .zip file. Nothing is unpacked to the disk.

    Args:
        path: The folder or file.

    Attributes:
        path: The folder or file.
        names: Sorted names of the entries, without leftovers of operating systems.

    Raises:
        DataError: The file cannot be opened, an entry is encrypted, the name of an entry leads out
            of the archive or is not UTF-8, or the archive has too many entries or would unpack to
            more than 16 GiB (256 MiB for one entry).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self._sizes = _list_folder(path)
        else:
            self._zip = open_zip(path)
            self._sizes = {
                entry.filename: entry.file_size
                for entry in self._zip.infolist()
                if not entry.is_dir()
            }
        try:
            self._check()
        except DataError:
            self.__exit__()
            raise
        self.names = sorted(name for name in self._sizes if not _is_hidden(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def read(self, name: str) -> bytes:
        """Return the content of an entry.

        Args:
            name: Name of the entry.

        Raises:
            DataError: The entry is damaged, or is a pipe or a device.
        """
        try:
            if self._zip is not None:
                return self._zip.read(name)
            files.check_regular(self.path / name)
            return (self.path / name).read_bytes()
        except DAMAGED as error:
            raise DataError(
                f"{self.path}: the entry {name} cannot be read ({error}). Replace it by an intact"
                " file, or remove it."
            ) from error

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) that changes when the content changes.

        For a .zip file it covers all bytes. For a folder it covers names, sizes and modification
        times of the files, because reading all of them would be slow.
        """
        sha = hashlib.sha256()
        if self._zip is not None:
            with self.path.open("rb") as file:
                while block := file.read(1 << 22):
                    sha.update(block)
            return sha.hexdigest()
        for name in self.names:
            status = (self.path / name).stat()
            sha.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return sha.hexdigest()

    def _check(self) -> None:
        """Raise a DataError if the archive exceeds a limit or an entry's name leads out of it."""
        if len(self._sizes) > MAX_ENTRIES:
            raise DataError(
                f"{self.path} has {len(self._sizes):,} entries; the limit is {MAX_ENTRIES:,}. Leave"
                " out files that are not samples, or save the samples as one NPZ file."
            )
        for name, size in self._sizes.items():
            if not files.is_text(name):
                raise DataError(
                    f"{self.path}: the name of the entry {name!r} is not UTF-8. Rename it."
                )
            pure = PurePosixPath(name.replace("\\", "/"))
            if pure.is_absolute() or ".." in pure.parts or (pure.parts and ":" in pure.parts[0]):
                raise DataError(
                    f"{self.path}: the entry {name!r} leads out of the archive. Remove it: such"
                    " archives are not read."
                )
            if size > MAX_ENTRY:
                raise DataError(
                    f"{self.path}: the entry {name} would unpack to {size / 2**20:.0f} MiB; "
                    f"the limit is {MAX_ENTRY // 2**20}. Remove it, or make it smaller."
                )
        total = sum(self._sizes.values())
        if total > MAX_BYTES:
            raise DataError(
                f"{self.path} would unpack to {total / 2**30:.1f} GiB; the limit is"
                f" {MAX_BYTES // 2**30}. Use fewer or smaller samples."
            )


class SingleFile(Archive):
    """One file as the only entry of a folder.

    Args:
        file: The file.

    Raises:
        DataError: The file is too large, or its name is not UTF-8.
        OSError: The file does not exist.
    """

    def __init__(self, file: Path) -> None:
        self.path = file.parent
        self._zip = None
        self._sizes = {file.name: file.stat().st_size}
        self._check()
        self.names = [file.name]


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a .zip or .npz file, and check the two headers of each entry.

    An entry has a header beside its content and one in the directory at the end of the file.
    `zipfile` reads the second one alone, and so accepts contradictory files.

    Args:
        path: The file.

    Returns:
        The open file, which the caller closes.

    Raises:
        DataError: The file is damaged, is a pipe or a device, or has an entry that is encrypted or
            packed by an unknown method.
    """
    try:
        files.check_regular(path)
        archive = zipfile.ZipFile(path)
    except DAMAGED as error:
        kind = "not an intact NPZ file" if path.suffix == ".npz" else ZIP_OR_FOLDER
        raise DataError(f"{path} is {kind} ({error}). Download or create it again.") from error
    try:
        with path.open("rb") as stream:
            for entry in archive.infolist():
                stream.seek(entry.header_offset)
                flags, method = struct.unpack("<6xHH20x", stream.read(30))
                if (flags | entry.flag_bits) & ENCRYPTED:
                    raise DataError(
                        f"{path}: the entry {entry.filename} is encrypted. Create the file without"
                        " a password."
                    )
                if method != entry.compress_type or method not in PACKED_BY:
                    raise DataError(
                        f"{path}: the entry {entry.filename} is packed by an unknown method"
                        f" ({method}). Create the file again."
                    )
    except DAMAGED as error:
        archive.close()
        raise DataError(f"{path} is damaged ({error}). Download or create it again.") from error
    except DataError:
        archive.close()
        raise
    return archive


def _list_folder(path: Path) -> dict[str, int]:
    """Return the size in bytes of every file below a folder, by its relative path."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for file in names:
            full = Path(folder) / file
            sizes[full.relative_to(path).as_posix()] = full.stat().st_size if full.exists() else 0
    return sizes


def _is_hidden(name: str) -> bool:
    """Return whether an entry is hidden or a leftover of macOS (`.DS_Store`, `__MACOSX/`)."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)
