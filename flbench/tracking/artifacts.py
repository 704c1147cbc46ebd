"""The files that MLflow gets of a folder."""

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final, NamedTuple

from flbench.core import files
from flbench.core.errors import DataError
from flbench.results.checkpoint_files import files_of

OF_TRIAL: Final = ("config.yaml", "trial.json")
OF_RUN: Final = ("config.yaml", "partition.json", "provenance.json")
OF_RESULTS: Final = (
    *("summary.json", "report.html", "clients.csv", "new_clients.csv", "per_class.csv"),
    *("confusion.csv", "learned.json", "predictions.csv"),
)
OF_CAMPAIGN: Final = (
    *("study.json", "comparison.json", "failures.json", "report.html", "report.md", "report.json"),
    *("pictures/*.svg", "pictures/*.png", "tables/*.csv", "tables/*.tex"),
)
MAX_CHECKPOINT_BYTES: Final = 10_000_000
"""Largest size of a checkpoint with all of its files that is sent."""


class File(NamedTuple):
    """A file of a run in MLflow.

    Attributes:
        name: Its path among the run's artifacts.
        path: The file itself.
        digest: Hash of name and content.
    """

    name: str
    path: Path
    digest: str


def found(folder: Path, patterns: Iterable[str]) -> list[File]:
    """Return files of a folder by their names, or by patterns such as `tables/*.csv`.

    Raises:
        UserError: A file is a link.
    """
    there: list[File] = []
    for file in (one for pattern in patterns for one in sorted(folder.glob(pattern))):
        files.check_no_link(file)
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            both = f"{name}\0{digest_of(file)}".encode(errors="surrogateescape")
            # A tag has the digests of all files of a run, so they are short.
            there.append(File(name, file, sha256(both).hexdigest()[:8]))
    return there


def checkpoints(folder: Path) -> list[File]:
    """Return the checkpoint of the best round, and that of the last round if it is another.

    One with more than `MAX_CHECKPOINT_BYTES` is left out.
    """
    there: dict[str, None] = {}
    sent = ""
    for name in ("best", "last"):
        file = folder / "checkpoints" / f"{name}.safetensors"
        if not file.is_file() or digest_of(file) == sent:
            continue
        sent, parts = digest_of(file), [file]
        with suppress(DataError):  # what cannot be read is sent as it is
            parts = [part for part in files_of(file) if part.is_file()]
        if sum(part.stat().st_size for part in parts) <= MAX_CHECKPOINT_BYTES:
            there |= dict.fromkeys(f"checkpoints/{part.name}" for part in parts)
    return found(folder, there)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is read once for each of its versions."""
    stat = path.stat()
    return _digest_of(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=65536)
def _digest_of(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
