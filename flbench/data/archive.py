"""Uniform reading of folders and .zip files, within limits of size and number of entries."""

import hashlib
import lzma
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final, Self

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.text import one_line

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
SAMPLE_SUFFIXES: Final = ("", ".csv", ".png", ".jpg", ".jpeg", ".webp")
"""Suffixes of samples; class folders and client folders have none."""
DOCUMENTS: Final = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog|authors)(\..*)?|.*\.md|icon\r"
    r"|(thumbs|ehthumbs)\.db|desktop\.ini",
    re.IGNORECASE,
)
"""Names of files that are expected beside samples."""
OTHER_TABLES: Final = (".tsv", ".txt", ".xls", ".xlsx", ".ods", ".parquet", ".feather", ".data")
_TO_CSV: Final = "Save the table as a .csv file, with commas and decimal points."
_UNPACK: Final = "Unpack it to a folder, or create a .zip file."
NOT_READ: Final = {
    **dict.fromkeys(OTHER_TABLES, _TO_CSV),
    **dict.fromkeys((".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"), _UNPACK),
    ".npy": "Save samples and labels together: np.savez(FILE, train_images=x, train_labels=y).",
}
"""What to do with files of other formats, by their suffix in lower case."""
LEFTOVERS: Final = re.compile(
    r"__MACOSX|\._.*|\.(DS_Store|ipynb_checkpoints|git|svn|dvc|venv|idea|vscode|cache|thumbnails)"
    r"|\.(Trash|nfs|~).*"
)
MOST_LINKS: Final = 100_000  # links to folders that are followed below one folder


class Archive:
    """The files below a folder, or the entries of a .zip file. Nothing is unpacked to the disk.

    Links below a folder are followed, wherever they lead, but a link to a folder above itself is
    not. Names of entries that Windows wrote with backslashes are read with slashes.

    Args:
        path: The folder or file.

    Attributes:
        path: The folder or file.
        names: Sorted names of the entries, without hidden ones.
        folders: Sorted names of the folders, also empty ones, without hidden ones.

    Raises:
        DataError: The file cannot be opened, an entry is encrypted, the name of an entry leads out
            of the archive or is not UTF-8, a link leads nowhere, a folder cannot be read, or the
            archive has too many entries or would unpack to more than 16 GiB (256 MiB for one
            entry of a .zip file).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        self._loops: list[str] = []
        if path.is_dir():
            self._sizes, folders, self._loops = _list_folder(path)
            self._entries = {name: name for name in self._sizes}
        else:
            self._zip = open_zip(path)
            try:
                self._entries, folders = _list_zip(self._zip, path)
            except DataError:
                self.__exit__()
                raise
            self._sizes = {
                name: self._zip.getinfo(entry).file_size for name, entry in self._entries.items()
            }
        try:
            self._check()
        except DataError:
            self.__exit__()
            raise
        self.names = sorted(name for name in self._sizes if not _is_hidden(name))
        self.folders = sorted(
            name for name in _with_parents(self.names, folders) if not _is_hidden(name)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def place(self, name: str) -> str:
        """Return what error messages call an entry."""
        return f"{self.path}: {name}"

    def read(self, name: str) -> bytes:
        """Return the content of an entry.

        Args:
            name: Name of the entry.

        Raises:
            DataError: The entry is damaged, or is a pipe or a device.
        """
        try:
            if self._zip is not None:
                return self._zip.read(self._entries[name])
            file = self._file(name)
            files.check_regular(file)
            return file.read_bytes()
        except DAMAGED as error:
            raise DataError(
                f"{self.path}: the entry {name} cannot be read ({error}). Replace it by an intact"
                " file, or remove it."
            ) from error

    def left_out(self, used: Iterable[str], kinds: str) -> tuple[str, ...]:
        """Return notes about what is not read, with the number of files of each kind.

        Documents such as README and LICENSE and leftovers of operating systems are not counted.

        Args:
            used: Names of the entries that are read, or that another note counts.
            kinds: What files are read, for the note.
        """
        known = set(used)
        others = [
            name
            for name in self.names
            if name not in known and not DOCUMENTS.fullmatch(PurePosixPath(name).name)
        ]
        hidden = [
            name
            for name in sorted(self._sizes.keys() - set(self.names))
            if not _is_leftover(name) and _suffix(name) in SAMPLE_SUFFIXES[1:]
        ]
        found = (
            (others, f"files are not read ({kinds})"),
            (hidden, "hidden files are not read; rename files and folders that begin with a dot"),
            (self._loops, "links to a folder above themselves are not followed"),
        )
        return tuple(
            f"data: {len(names):,} {what}, such as {one_line(names[0])}."
            for names, what in found
            if names
        )

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
            try:
                status = self._file(name).stat()
            except OSError:  # a link that leads nowhere and is no sample
                continue
            sha.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return sha.hexdigest()

    def _file(self, name: str) -> Path:
        """Return the file of an entry that is not in a .zip file."""
        return self.path / name

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
            # A small .zip file may have a huge entry.
            if self._zip is not None and size > MAX_ENTRY:
                raise DataError(
                    f"{self.path}: the entry {name} would unpack to {size / 2**20:.0f} MiB; the"
                    f" limit is {MAX_ENTRY // 2**20}. Unpack the archive to a folder, where files"
                    " have no such limit, or remove the entry."
                )
        total = sum(self._sizes.values())
        if total > MAX_BYTES:
            raise DataError(
                f"{self.path} would unpack to {total / 2**30:.1f} GiB; the limit is"
                f" {MAX_BYTES // 2**30}. Use fewer or smaller samples."
            )


class SingleFile(Archive):
    """One file with itself as its only entry.

    Args:
        file: The file.

    Raises:
        DataError: The file is too large, or its name is not UTF-8.
        OSError: The file does not exist.
    """

    def __init__(self, file: Path) -> None:
        self.path = file
        self._zip = None
        self._loops = []
        self._sizes = {file.name: file.stat().st_size}
        self._entries = {file.name: file.name}
        self._check()
        self.names, self.folders = [file.name], []

    def place(self, name: str) -> str:
        """Return what error messages call the file: its path."""
        return str(self.path)

    def _file(self, name: str) -> Path:
        return self.path


def check_format(path: Path) -> None:
    """Raise a DataError with the cure if a path is a file of a known format that is not read."""
    cure = NOT_READ.get(path.suffix.lower())
    if path.is_file() and cure is not None:
        raise DataError(f"{path} is not a file that flbench reads ({path.suffix}). {cure}")


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
        cure = "Download or create it again"
        if path.suffix.lower() not in (".npz", ".zip"):
            cure = "Give a .csv, .npz or .zip file, or a folder"
        raise DataError(f"{path} is {kind} ({error}). {cure}.") from error
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


def _list_zip(archive: zipfile.ZipFile, path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the name of each entry of a ZIP file, with slashes, and the names of the folders.

    Args:
        archive: The open file.
        path: Its path, for messages.

    Returns:
        The name that the file has for each entry, by the name with slashes; names of folders.

    Raises:
        DataError: Two entries have one name, or an entry is a link that could be a sample or a
            folder of samples.
    """
    entries: dict[str, str] = {}
    folders = []
    for entry in archive.infolist():
        name = entry.filename.replace("\\", "/")
        if name.endswith("/"):
            folders.append(name.rstrip("/"))
            continue
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        if is_link and not _is_hidden(name) and _suffix(name) in SAMPLE_SUFFIXES:
            raise DataError(
                f"{path}: the entry {name} is a symbolic link, so that its content is not in the"
                " archive. Create the archive with the content of links (zip without -y), or remove"
                " the entry."
            )
        if entries.setdefault(name, entry.filename) != entry.filename:
            raise DataError(f"{path} has two entries of the name {name}. Rename or remove one.")
    return entries, folders


def _list_folder(path: Path) -> tuple[dict[str, int], list[str], list[str]]:
    """List what lies below a folder. Links are followed, except those within hidden folders.

    Returns:
        The size in bytes of every file by its relative path; the relative paths of the folders; and
        those of links that lead to a folder above them, which are not followed.

    Raises:
        DataError: A folder cannot be read, a link leads nowhere, or there are too many of them.
    """
    sizes: dict[str, int] = {}
    folders: list[str] = []
    loops: list[str] = []
    links = 0
    waiting: list[tuple[Path, str, tuple[tuple[int, int], ...]]] = [(path, "", (_identity(path),))]
    while waiting:
        folder, prefix, above = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            if _is_hidden(prefix) or prefix == "lost+found/":
                continue
            raise DataError(
                f"{path}: the folder {prefix or '.'} cannot be read ({error.strerror}). Change its"
                " permissions, or remove it."
            ) from error
        for entry in entries:
            name, hidden = prefix + entry.name, _is_hidden(prefix + entry.name)
            try:
                is_folder = entry.is_dir(follow_symlinks=not hidden)
                identity = _identity(Path(entry.path)) if is_folder else None
            except OSError:  # a link to itself, or a folder above without permissions
                identity = None
            if identity is None:
                sizes[name] = _size(path, Path(entry.path), name)
                continue
            links += entry.is_symlink()
            if identity in above:
                loops.append(name)
                continue
            if links > MOST_LINKS:
                raise DataError(
                    f"{path} has more than {MOST_LINKS:,} links to folders, such as {name}. Replace"
                    " them by folders."
                )
            folders.append(name)
            waiting.append((Path(entry.path), f"{name}/", (*above, identity)))
    return sizes, folders, loops


def _with_parents(names: Iterable[str], folders: Iterable[str]) -> set[str]:
    """Return folders, together with all folders above files and above them."""
    found = set(folders)
    for name in [*names, *folders]:
        parent = name.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def _identity(folder: Path) -> tuple[int, int]:
    """Return what is equal for all paths to one folder."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _size(path: Path, file: Path, name: str) -> int:
    """Return the size of a file in bytes; 0 for a link that leads nowhere and is no sample.

    Raises:
        DataError: The link has the name of a sample, or of a folder of samples.
    """
    try:
        return file.stat().st_size
    except OSError as error:
        if not _is_hidden(name) and _suffix(name) in SAMPLE_SUFFIXES and file.is_symlink():
            raise DataError(
                f"{path}: the link {name} cannot be followed ({error.strerror}); it leads to"
                f" {os.readlink(file)}. Correct or remove it."
            ) from error
        return 0


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _is_leftover(name: str) -> bool:
    """Return whether a hidden entry comes from an operating system or a tool."""
    return any(LEFTOVERS.fullmatch(part) for part in PurePosixPath(name).parts)


def _is_hidden(name: str) -> bool:
    """Return whether an entry is hidden or a leftover of macOS (`.DS_Store`, `__MACOSX/`)."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)
